//! The rules by which the server goes back in a bounded context.

use contextpilot_residency::{RewindGeneration, Rewinding};
use contextpilot_server_flags::Generation;

use crate::attach;

pub(crate) fn rules() -> Rewinding {
    let flags = attach::flags();
    Rewinding {
        generation: match flags.generation() {
            Generation::Of2025 | Generation::Early2026 => RewindGeneration::Early2026,
            Generation::Mid2026 => RewindGeneration::Mid2026,
            Generation::Late2026 => RewindGeneration::Late2026,
        },
        checkpoints: flags.ctx_checkpoints(),
        min_step: flags.checkpoint_min_step(),
    }
}
