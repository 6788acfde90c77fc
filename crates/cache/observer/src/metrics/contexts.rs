//! The contexts of a program that is no llama-server.

use contextpilot_control::{ProgramContext, Stats};

use super::Page;

impl Page {
    /// Series of each context. A server has none.
    pub(super) fn contexts(&mut self, stats: &Stats) {
        if stats.contexts.is_empty() {
            return;
        }
        self.family(
            "context_tokens",
            "gauge",
            "Tokens that the sequences of a context hold, in a program that is no llama-server. Slot 1003 is \
             sequence 3 of context 1",
        );
        self.of_each(stats, "context_tokens", &[], |context| context.tokens);
        self.family(
            "context_prompts_total",
            "counter",
            "Prompts of a context whose evaluation was completed, since it was created",
        );
        self.of_each(stats, "context_prompts_total", &[], |context| {
            context.reuse.prompts
        });
        let name = "context_prompt_tokens_total";
        self.family(
            name,
            "counter",
            "Prompt tokens of a context: reused from the cache, or evaluated, since it was created",
        );
        let reused = [("source", "reused")];
        self.of_each(stats, name, &reused, |context| context.reuse.reused);
        let evaluated = [("source", "evaluated")];
        self.of_each(stats, name, &evaluated, |context| context.reuse.evaluated);
    }

    fn of_each(
        &mut self,
        stats: &Stats,
        name: &str,
        more: &[(&str, &str)],
        value: fn(&ProgramContext) -> u64,
    ) {
        for context in &stats.contexts {
            let number = context.context.to_string();
            let own = context.model.as_deref().unwrap_or("unknown");
            let mut labels = vec![("context", number.as_str()), ("context_model", own)];
            labels.extend(more);
            self.sample(name, &labels, value(context) as f64);
        }
    }
}
