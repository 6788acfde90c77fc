//! The prefix store's figures.

use contextpilot_control::Stats;

use super::Page;

impl Page {
    pub(super) fn prefix_store(&mut self, stats: &Stats) {
        let Some(store) = &stats.store else {
            return;
        };
        for (name, help, value) in [
            (
                "prefix_store_bytes",
                "Bytes that the files of the prefix store take",
                store.bytes as f64,
            ),
            (
                "prefix_store_limit_bytes",
                "Bytes that they may take",
                store.limit_bytes as f64,
            ),
            (
                "prefix_store_kept_prompts",
                "Prompts that clients have asked to keep in the prefix store (cache_control)",
                store.kept.prompts as f64,
            ),
            (
                "prefix_store_kept_bytes",
                "Bytes of prefix_store_bytes that these take",
                store.kept.bytes as f64,
            ),
            (
                "prefix_store_kept_limit_bytes",
                "Bytes that they may take: a share of prefix_store_limit_bytes",
                store.kept.limit_bytes as f64,
            ),
            (
                "prefix_store_encodings_bytes",
                "Bytes of prefix_store_bytes that encoded images and sounds take",
                store.encodings_bytes as f64,
            ),
            (
                "prefix_store_ready",
                "1 if the prefix store is in use, 0 while its folder and the model's file are read",
                f64::from(u8::from(store.ready)),
            ),
            (
                "prefix_store_failing",
                "1 if the prefix store is refused for a context, or the disk refused something; /stats \
                 says why (store.refused, store.problem)",
                f64::from(u8::from(
                    store.problem.is_some() || !store.refused.is_empty(),
                )),
            ),
        ] {
            self.gauge(name, help, Some(value));
        }
        self.counters(
            "prefix_store_tokens_total",
            "Tokens that were loaded from the prefix store and not evaluated, or saved to it",
            "change",
            &[
                ("loaded", store.loaded_tokens),
                ("saved", store.saved_tokens),
            ],
        );
        self.counters(
            "prefix_store_images_total",
            "Images and sounds that the server has encoded, or that were loaded from the prefix store in place of encoding",
            "change",
            &[
                ("encoded", store.encoded),
                ("loaded", store.encodings_loaded),
            ],
        );
        self.family(
            "prefix_store_seconds_total",
            "counter",
            "Seconds of the server's thread: searching, reading and loading, copying out of the engine, or waiting for the remote",
        );
        for (change, seconds) in [
            ("loaded", store.load_seconds),
            ("saved", store.save_seconds),
            ("fetched", store.fetch_seconds),
        ] {
            self.sample("prefix_store_seconds_total", &[("change", change)], seconds);
        }
        self.counter(
            "prefix_store_failed_loads_total",
            "Times that the engine did not take a state from the prefix store; the tokens were evaluated",
            store.failed_loads,
        );
        self.counter(
            "prefix_store_lost_chunks_total",
            "Chunks that the prefix store did not keep: the disk was too slow, or refused them",
            store.lost_chunks,
        );
        self.counter(
            "prefix_store_fetched_chunks_total",
            "Chunks that were fetched from the prefix store's remote because a prompt wanted them",
            store.fetched_chunks,
        );
        let Some(remote) = &store.remote else {
            return;
        };
        self.gauge(
            "prefix_store_remote_failing",
            "1 if the prefix store's remote cannot be used; /stats says why (store.remote.problem)",
            Some(f64::from(u8::from(!remote.reachable))),
        );
        self.gauge(
            "prefix_store_remote_waiting_chunks",
            "Chunks that wait to be sent to the prefix store's remote",
            Some(remote.waiting as f64),
        );
        // That process may begin again while the server runs.
        self.counters(
            "prefix_store_remote_chunks_total",
            "Chunks that the prefix store and its remote have exchanged, and those there that were refused",
            "change",
            &[
                ("sent", remote.sent),
                ("fetched", remote.fetched),
                ("refused", remote.refused),
            ],
        );
    }
}
