//! Sliding windows that keep all positions (`--swa-full`).

use contextpilot_traffic::{Memory, SizeKind, Traffic};

use crate::setting::Setting;
use crate::sizes::Sizes;

/// The recording and the setting, had the server been started with `--swa-full`: a slot goes back to any position of what it
/// evaluated itself. A saved state has no more of the layers with windows than before, except from servers that saved all of
/// their positions. `None`: the model has no windows.
pub(crate) fn with_whole_windows(
    traffic: &Traffic,
    setting: &Setting,
) -> Option<(Setting, Traffic)> {
    let Memory::Window(window) = setting.server.memory else {
        return None;
    };
    let mut traffic = traffic.clone();
    let position = Sizes::new(&traffic.sizes).of_position(window);
    traffic.sizes.retain(|size| size.kind == SizeKind::State);
    let saves_all = setting.generation.kept_beyond_window().is_none();
    for state in traffic.sizes.iter_mut().filter(|_| saves_all) {
        let more = u64::from(state.tokens.saturating_sub(window));
        state.bytes = state.bytes.saturating_add(more.saturating_mul(position));
    }
    let mut setting = setting.clone();
    for server in traffic.setup.iter_mut().chain([&mut setting.server]) {
        (server.memory, server.whole_windows) = (Memory::Full, true);
        server.whole_window = window;
    }
    Some((setting, traffic))
}

/// What a context takes more with `--swa-full`, bytes: all positions of the layers with windows. Where states have these, too,
/// its size is that of a state, and has them.
pub(crate) fn more_of_context(traffic: &Traffic, setting: &Setting) -> u64 {
    let Memory::Window(window) = setting.server.memory else {
        return 0;
    };
    if setting.generation.kept_beyond_window().is_none() {
        return 0;
    }
    let more = u64::from(setting.server.context.saturating_sub(window));
    more.saturating_mul(Sizes::new(&traffic.sizes).of_position(window))
}

#[cfg(test)]
mod tests {
    use contextpilot_traffic::{Setup, SizeSample};

    use super::*;
    use crate::made::{recorded, request, row, traffic};
    use crate::setting::Generation;
    use crate::simulate;

    #[test]
    fn whole_windows_go_back_anywhere_and_their_states_are_no_larger() {
        let setup = Setup {
            memory: Memory::Window(64),
            parallel: 1,
            context: 2064,
            cache_ram: Some(0),
            ctx_checkpoints: 0,
            batch_size: 64,
            ubatch_size: 64,
            ..Setup::default()
        };
        let talk = |end| row(&[(0, 700), (end, 300)]);
        let mut traffic = traffic(setup, vec![request(0, talk(5000)), request(1, talk(9000))]);
        let size = |kind, tokens, bytes| SizeSample {
            kind,
            tokens,
            bytes,
        };
        // Ten bytes for each position, and twenty for each in a window.
        traffic.sizes = vec![
            size(SizeKind::State, 500, 5000 + 64 * 20),
            size(SizeKind::State, 1000, 10_000 + 64 * 20),
            size(SizeKind::Checkpoint, 500, 64 * 20),
        ];
        let setting = recorded(&traffic);
        let reused = |traffic: &Traffic, setting: &Setting| {
            simulate(traffic, setting).outcomes[1].map(|outcome| outcome.reused)
        };
        assert_eq!(reused(&traffic, &setting), Some(0));
        let (whole, changed) = with_whole_windows(&traffic, &setting).expect("it has windows");
        assert_eq!(reused(&changed, &whole), Some(700));
        let sizes = Sizes::new(&changed.sizes);
        assert_eq!(
            [500, 1000, 4000].map(|tokens| sizes.state(tokens)),
            [6280, 11_280, 41_280]
        );
        assert_eq!(more_of_context(&traffic, &setting), 2000 * 20);
        // A server of early 2026 saves all positions.
        let early = Setting {
            generation: Generation::Early2026,
            ..setting
        };
        assert_eq!(more_of_context(&traffic, &early), 0);
        let (_, changed) = with_whole_windows(&traffic, &early).expect("it has windows");
        let sizes = Sizes::new(&changed.sizes);
        assert_eq!(
            [500, 1000, 4000].map(|tokens| sizes.state(tokens)),
            [15_000, 30_000, 120_000]
        );
        assert!(!whole.can_have_store());
        assert!(with_whole_windows(&changed, &whole).is_none());
    }
}
