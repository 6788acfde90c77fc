//! What was generated is missing when it comes back, or a block of the prompt moves, as chat templates have it.

use contextpilot_testbed::Spec;

use super::*;

const FLAGS: &str = "--parallel 1 --cache-ram 0";

/// 60 tokens are generated, the same for the same prompt.
fn answered(prompt: &[i32]) -> Request {
    Request::completion(prompt.to_vec())
        .predict(60)
        .with("temperature", 1.0)
        .with("seed", 7)
        .with("ignore_eos", true)
        .with("return_tokens", true)
}

/// What is generated for a prompt.
fn said(prompt: &[i32]) -> Vec<i32> {
    let server = Server::builder()
        .model(&Model::tiny(Arch::Llama))
        .args(["-c", "8192"])
        .args(FLAGS.split(' '))
        .spawn()
        .unwrap();
    let answer = server.complete(&answered(prompt)).unwrap();
    let answer: Vec<i32> = serde_json::from_value(answer.raw["tokens"].clone()).unwrap();
    assert_eq!(answer.len(), 60);
    answer
}

/// A client that leaves out reasoning, or a template that never shows it: each turn evaluates what was said behind it.
#[test]
fn reasoning_that_does_not_come_back() {
    let p = tokens(1, 300);
    let answer = said(&p);
    let next = |answer: &[i32]| [&p[..], answer, &tokens(2, 30)].concat();
    let steps = vec![Step::Ask(answered(&p)), ask(next(&answer[35..]))];
    let scene = scene("reasoning left out", FLAGS, steps).better(next(&answer));
    follows_to(&scene, "left_out");
    let before = scene.play().said;
    assert!(
        before.contains(", in the answer that was generated there (left out): 35 tokens left out"),
        "{before}"
    );
    assert!(before.contains("nothing took its place"), "{before}");
}

/// A template that leaves reasoning out from the next user message on, as Qwen3's does: the chain of calls since then is
/// evaluated again.
#[test]
fn reasoning_that_came_back_once_and_is_left_out_later() {
    let p = tokens(1, 300);
    let answer = said(&p);
    let result = |answer: &[i32]| [&p[..], answer, &tokens(2, 100)].concat();
    let next = |answer: &[i32]| [result(answer), tokens(3, 30)].concat();
    let steps = vec![
        Step::Ask(answered(&p)),
        ask(result(&answer)),
        ask(next(&answer[35..])),
    ];
    let scene = scene("reasoning left out later", FLAGS, steps).better(next(&answer));
    follows_to(&scene, "left_out_later");
    let before = scene.play().said;
    assert!(
        before.contains(
            ", in an answer that had come back before (left out later): 35 tokens left out"
        ),
        "{before}"
    );
}

/// The same where what is left of the answer is in other tokens: these take a place, but no client has put them there.
#[test]
fn an_earlier_answer_whose_rest_is_in_other_tokens() {
    let p = tokens(1, 300);
    let answer = said(&p);
    let result = |answer: &[i32]| [&p[..], answer, &tokens(2, 100)].concat();
    let shorter = [&tokens(5, 5), &answer[40..]].concat();
    let better = [result(&answer), tokens(3, 30)].concat();
    let steps = vec![
        Step::Ask(answered(&p)),
        ask(result(&answer)),
        ask([result(&shorter), tokens(3, 30)].concat()),
    ];
    let scene = scene("reasoning left out later, other tokens", FLAGS, steps).better(better);
    follows_to(&scene, "same_answers");
    let before = scene.play().said;
    assert!(
        before.contains("in an answer that had come back before: 5 tokens in place of 40"),
        "{before}"
    );
    assert!(
        before.contains("keep the earlier answer as it came back before"),
        "{before}"
    );
}

/// The same where a client leaves out what it had sent itself: no template does that.
#[test]
fn text_of_a_client_that_is_left_out_is_no_answer() {
    let (p, old, rest) = (tokens(1, 300), tokens(4, 100), tokens(2, 200));
    let all = [&p[..], &old, &rest].concat();
    let fewer = [&p[..], &rest, &tokens(3, 30)].concat();
    let better = behind(&all, tokens(3, 30));
    let scene = scene("an old turn left out", FLAGS, vec![ask(all), ask(fewer)]).better(better);
    follows_to(&scene, "shortened");
    let before = scene.play().said;
    assert!(!before.contains("in an answer"), "{before}");
}

/// A template that has the tools in front of the last message, as Mistral's do.
#[test]
fn tools_that_move_to_the_last_message() {
    let (system, tools) = (tokens(1, 40), tokens(2, 300));
    let [first, second] = [3, 4].map(|seed| tokens(seed, 40));
    let steps = vec![
        ask([&system[..], &tools, &first].concat()),
        ask([&system[..], &first, &tools, &second].concat()),
    ];
    let better = [&system[..], &tools, &first, &second].concat();
    let scene = scene("tools that move", FLAGS, steps).better(better);
    follows_to(&scene, "same_place");
    let before = scene.play().said;
    let block =
        "at token 40 of 420 (moved): a block of 300 tokens that stood there stands further back";
    assert!(before.contains(block), "{before}");
}

/// A template that writes the day at the beginning, as Llama 3's does.
#[test]
fn a_date_that_a_template_writes() {
    let template = "Knowledge Date: December 2023\nToday Date: {{ date_string }}\n\n{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let asked = |day: &str| {
        let text = "What is a slot of a server, and what does it hold? ".repeat(6);
        let body = object!({
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 2,
            "chat_template_kwargs": {"date_string": day},
        });
        Step::Several(Request::new("/v1/chat/completions", body))
    };
    let flags = "--parallel 1 --cache-ram 0 --metrics --jinja --chat-template";
    let mut scene = scene(
        "a date of the template",
        flags,
        vec![asked("26 Jul 2026"), asked("27 Jul 2026")],
    );
    scene.flags.push(template.to_owned());
    let scene = Scene {
        better: Some(asked("26 Jul 2026")),
        with: |builder| builder.env("CONTEXTPILOT_EXPLAIN_TEXT", "1"),
        ..scene
    };
    follows_to(&scene, "same_date");
    let before = scene.play().said;
    assert!(before.contains("date_string"), "{before}");
}

/// A model whose tokenizer makes one token of some pairs of letters.
fn with_pairs(builder: Builder) -> Builder {
    let model = Model::of(&Spec {
        letter_pairs: true,
        ..Spec::new(Arch::Llama)
    });
    builder.model(&model).env("CONTEXTPILOT_EXPLAIN_TEXT", "1")
}

/// The model says "a" and "b", of which the tokenizer makes a token when they come back. What is behind them is the same.
#[test]
fn an_answer_that_comes_back_in_other_tokens() {
    let prompt = "What is a slot of a server, and what does it hold? ".repeat(6);
    let asked = Request::completion(&*prompt)
        .predict(60)
        .with("temperature", 1.0)
        .with("seed", 7)
        .with("grammar", r#"root ::= [i-z]{5} "ab" [i-z]{53}"#)
        .with("logit_bias", object!([["ab", false]]));
    let server = with_pairs(
        Server::builder()
            .args(["-c", "8192"])
            .args(FLAGS.split(' ')),
    );
    let said = server.spawn().unwrap().complete(&asked).unwrap();
    let said = said.raw["content"].as_str().expect("a text").to_owned();
    assert!(said.len() == 60 && said[5..].starts_with("ab"), "{said}");
    let next = format!("{prompt}{said} What is behind it?");
    let next = Request::completion(next.as_str()).predict(2);
    let steps = vec![Step::Ask(asked), Step::Ask(next)];
    let scene = Scene {
        with: with_pairs,
        ..scene("an answer in other tokens", FLAGS, steps)
    };
    follows_to(&scene, "CONTEXTPILOT_KEEP_TOKENS=1");
    let before = scene.play();
    let same = "it is the same text in other tokens";
    assert!(before.said.contains(same), "{}", before.said);
    assert!(
        before.said.contains(" (tokenized otherwise): "),
        "{}",
        before.said
    );
    let advice = before
        .advice()
        .iter()
        .find(|one| one["setting"][0].is_string());
    let after = scene.followed(advice.expect("the advice")).play();
    let kept = "2 tokens kept as they were generated";
    assert!(after.said.contains(kept), "{}", after.said);
    // "ha" and "be" are tokens, and the last token of the answer was not evaluated.
    assert_eq!(after.last(), 1 + " What is behind it?".len() as i64 - 2);
}

/// A tool call that the chat template writes with white space that the model has not written.
#[test]
fn a_call_that_is_spelled_otherwise() {
    let prompt = "What is a slot of a server, and what does it hold? ".repeat(6);
    let grammar = r#"root ::= "{\"path\":\"" [i-z]{80} "\"}""#;
    let asked = Request::completion(&*prompt)
        .predict(150)
        .with("seed", 7)
        .with("grammar", grammar);
    let server = Server::builder()
        .model(&Model::tiny(Arch::Llama))
        .args(["-c", "8192"])
        .args(FLAGS.split(' '))
        .spawn()
        .unwrap();
    let said = server.complete(&asked).unwrap();
    let said = said.raw["content"].as_str().expect("a text").to_owned();
    // Of what is short between two blanks, less is promised than is saved.
    let spaced = said.replace(':', ": ");
    assert_eq!(spaced.len(), said.len() + 1, "{said}");
    let next = format!("{prompt}{spaced} What is behind it?");
    let next = Request::completion(next.as_str()).predict(2);
    let scene = Scene {
        with: |builder| builder.env("CONTEXTPILOT_EXPLAIN_TEXT", "1"),
        ..scene(
            "a call that is spelled otherwise",
            FLAGS,
            vec![Step::Ask(asked), Step::Ask(next)],
        )
    };
    follows_to(&scene, "CONTEXTPILOT_KEEP_TOKENS=calls");
    let before = scene.play().said;
    assert!(before.contains(" (spelled otherwise): "), "{before}");
}
