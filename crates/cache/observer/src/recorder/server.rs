//! Records facts about the server: its context, its adapters, and sizes.

use contextpilot_residency::{Adapter, Blend, BufferId, Scale};
use contextpilot_traffic::{Applied, SizeKind, SizeSample};

use super::{Recorder, append};

impl Recorder {
    /// Adapters as they are recorded: by a keyed hash, not by name.
    pub(super) fn applied(&self, adapters: &[Adapter]) -> Applied {
        let some = adapters
            .iter()
            .filter(|adapter| adapter.scale != Scale::new(0.0));
        let text: Vec<u8> = some
            .flat_map(|adapter| format!("{}:{:?};", adapter.address, adapter.scale).into_bytes())
            .collect();
        let blend = Blend::from_adapters(adapters.iter().map(|adapter| (adapter, adapter.scale)));
        Applied {
            hash: if text.is_empty() {
                0
            } else {
                self.writer.hash(&text).max(1)
            },
            enabled: blend.is_enabled(),
            invoked: blend.is_invoked(),
        }
    }

    /// Call when a context is created. Only the first one counts, which is the server's own. `capacity`:
    /// tokens of it that a slot can have. `limit`: tokens that a slot may hold.
    pub(super) fn context(
        &mut self,
        capacity: Option<u32>,
        limit: Option<u32>,
        slots: Option<u32>,
    ) {
        let Some(capacity) = capacity.filter(|_| !self.is_set_up) else {
            return;
        };
        self.is_set_up = true;
        self.setup.slot_context = capacity.min(limit.unwrap_or(capacity));
        self.setup.parallel = slots.unwrap_or(self.setup.parallel);
        self.setup.context = if self.setup.kv_unified {
            capacity
        } else {
            capacity.saturating_mul(self.setup.parallel)
        };
        let recorded = self.writer.setup(&self.setup);
        append(recorded, &mut self.out, &mut self.full);
    }

    /// Records that the server has a prefix store, and how many bytes that may take.
    pub fn store(&mut self, limit: u64) {
        let recorded = self.writer.store(limit);
        append(recorded, &mut self.out, &mut self.full);
    }

    /// Records the size of what was saved to this buffer, if the last note told it.
    pub(super) fn sized(&mut self, buffer: BufferId, kind: SizeKind, tokens: u32) {
        let sized = self.buffer.take().filter(|&(sized, _)| sized == buffer);
        if let Some((_, bytes)) = sized {
            self.size(kind, tokens, bytes);
        }
    }

    /// Records a size, once for all lengths within a factor of 1.19 (a quarter of a power of two).
    pub(super) fn size(&mut self, kind: SizeKind, tokens: u32, bytes: u64) {
        let class = quarter_of_power(tokens.max(1));
        if tokens > 0 && self.sampled.insert((kind == SizeKind::State, class)) {
            let recorded = self.writer.size(SizeSample {
                kind,
                tokens,
                bytes,
            });
            append(recorded, &mut self.out, &mut self.full);
        }
    }
}

/// In which quarter of a power of two a number lies: four times its binary logarithm, rounded down. In whole numbers: the
/// logarithm of the C library would be all that the hook needs `libm` for, and then the dynamic linker looks there for every
/// symbol of the server's own libraries.
fn quarter_of_power(number: u32) -> u32 {
    /// The first three quarters of the way from 2^31 to 2^32.
    const QUARTERS: [u32; 3] = [2_553_802_834, 3_037_000_500, 3_611_622_603];
    let power = number.ilog2();
    let scaled = number << (31 - power);
    4 * power + QUARTERS.iter().filter(|from| scaled >= **from).count() as u32
}

#[cfg(test)]
mod tests {
    use super::quarter_of_power;

    #[test]
    fn a_quarter_of_a_power_is_four_times_the_logarithm() {
        let around = (0..32).flat_map(|power| {
            let begin = 2_f64.powi(power);
            let quarters =
                (0..4).map(move |quarter| (begin * 2_f64.powf(f64::from(quarter) / 4.0)) as u32);
            quarters.flat_map(|at| [at.saturating_sub(1).max(1), at, at.saturating_add(1)])
        });
        for number in around.chain(1..5_000).chain([u32::MAX]) {
            let logarithm = (f64::from(number).log2() * 4.0) as u32;
            assert_eq!(quarter_of_power(number), logarithm, "{number}");
        }
    }
}
