//! One made-up traffic in each of the formats, read back; and lines that are damaged, or whose numbers are absurd.

use contextpilot_trace::read::{Damaged, Format, Line, Reader, chain};
use contextpilot_trace::{Builder, Clock, NewRequest, Reuse, Sample, Trace, ceiling, curve};
use serde_json::{Value, json};

/// A request of the traffic: its session, when it comes, and its blocks, of which the last may be partly filled.
struct Made {
    session: u64,
    second: u64,
    input: u32,
    output: u32,
    ids: Vec<u64>,
}

/// A number below a bound.
fn random(state: &mut u64, below: u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

/// Sessions that grow turn by turn behind a beginning that is shared if `shared`.
fn made(block: u32, shared: bool) -> Vec<Made> {
    let mut state = 7;
    let mut next = 10;
    let mut chains: Vec<Vec<u64>> = Vec::new();
    let mut all = Vec::new();
    for nth in 0..400 {
        let session = random(&mut state, 40) as usize;
        if chains.len() <= session {
            chains.resize(session + 1, Vec::new());
        }
        let known = &mut chains[session];
        if known.is_empty() && shared {
            known.extend(0..4);
        }
        for _ in 0..=random(&mut state, 5) {
            known.push(next);
            next += 1;
        }
        let mut ids = known.clone();
        let last = 1 + random(&mut state, u64::from(block)) as u32;
        if last < block {
            // What it is partly filled with is not what it is filled with later.
            *ids.last_mut().expect("there are blocks") = next;
            next += 1;
        }
        all.push(Made {
            session: session as u64,
            second: nth * 3,
            input: (ids.len() as u32 - 1) * block + last,
            output: 5,
            ids,
        });
    }
    all
}

/// The same without any format.
fn directly(made: &[Made], block: u32) -> Trace {
    let mut builder = Builder::new(block, Clock::Trace, None);
    for request in made {
        let new = NewRequest {
            at: request.second * 1_000_000,
            input: request.input,
            output: request.output,
            ids: request.ids.clone(),
            ..NewRequest::default()
        };
        assert_eq!(builder.push(&new), Ok(0));
    }
    builder.finish()
}

fn read(lines: &[Value], expected: Format) -> Trace {
    let mut reader = Reader::new();
    let mut builder = None;
    for line in lines {
        let Ok(Line::Blocks(requests)) = reader.line(line.to_string().as_bytes()) else {
            panic!("{line}");
        };
        assert_eq!(reader.format(), Some(expected));
        assert_eq!(reader.is_by_session(), expected == Format::Weka);
        let block = reader.block().unwrap_or(expected.block());
        let builder =
            builder.get_or_insert_with(|| Builder::new(block, expected.clock(1000), None));
        for request in requests {
            assert_eq!(builder.push(&request), Ok(0));
        }
    }
    builder.expect("there are lines").finish()
}

#[track_caller]
fn assert_same(one: &Trace, other: &Trace) {
    assert_eq!(one.tree.blocks(), other.tree.blocks());
    let ceilings = [0, one.requests.len() / 2].map(|warm_up| ceiling(one, warm_up));
    let others = [0, one.requests.len() / 2].map(|warm_up| ceiling(other, warm_up));
    assert_eq!(ceilings, others);
    assert!(ceilings[0].reused_tokens > 0);
    let rooms = [5, 50, 200];
    assert_eq!(curve(one, &rooms, 0), curve(other, &rooms, 0));
}

#[test]
fn mooncakes_format_is_read_back_with_ids_that_are_numbers_or_names() {
    let made = made(512, true);
    let of = |id: &dyn Fn(u64) -> Value| -> Vec<Value> {
        let line = |request: &Made| {
            json!({"timestamp": request.second * 1000, "input_length": request.input, "output_length": request.output,
                "hash_ids": request.ids.iter().map(|id_of| id(*id_of)).collect::<Vec<_>>()})
        };
        made.iter().map(line).collect()
    };
    let numbers = read(&of(&|id| json!(id)), Format::Mooncake);
    assert_eq!(numbers.block, 512);
    assert_same(&numbers, &directly(&made, 512));
    let names = read(&of(&|id| json!(format!("{id:016x}"))), Format::Mooncake);
    assert_same(&names, &numbers);
    assert_eq!(numbers.requests[7].at, 21_000_000);
}

/// What a trace that was made up, not recorded, may have: the first line is not the first request, times are no whole numbers or all the
/// same, answers are empty, a request has an id twice.
#[test]
fn a_made_up_trace_is_read_in_the_order_of_its_times() {
    let made = made(512, true);
    let of = |time: &dyn Fn(&Made) -> f64, output: u32| -> Vec<Value> {
        let line = |request: &Made| json!({"timestamp": time(request), "input_length": request.input, "output_length": output, "hash_ids": request.ids});
        made.iter().map(line).collect()
    };
    let direct = directly(&made, 512);
    let of_1970 = |request: &Made| 1.7e12 + 1000.0 * request.second as f64 + 0.25;
    let mut lines = of(&of_1970, 0);
    let in_order = read(&lines, Format::Mooncake);
    assert_same(&in_order, &direct);
    assert_eq!(in_order.requests[7].at, 21_000_000);
    // Those that came before the first line, too.
    lines.rotate_left(150);
    lines[..250].reverse();
    let in_any = read(&lines, Format::Mooncake);
    assert_same(&in_any, &direct);
    assert_eq!(in_any.requests[7].at, 21_000_000);
    assert_eq!(in_any.requests[399].at, 399 * 3_000_000);
    // At one time: in the order of the lines.
    assert_same(&read(&of(&|_| 5.0, 1), Format::Mooncake), &direct);

    // An id stands for what is before it, too: the second of a request is another block.
    let line = |ids: &[u64], input: u32| json!({"timestamp": 0, "input_length": input, "output_length": 0, "hash_ids": ids});
    let twice = [
        line(&[1, 1, 1], 1100),
        line(&[1, 1], 1024),
        line(&[1, 1, 1], 1100),
    ];
    let trace = read(&twice, Format::Mooncake);
    assert_eq!(trace.tree.blocks(), 3);
    let all = ceiling(&trace, 0);
    assert_eq!((all.reused_blocks, all.blocks), (5, 8));
    assert_eq!((all.reused_tokens, all.tokens), (1024 + 1100, 3224));
    // Tokens behind the last id are there, and never reused.
    let short = [line(&[1, 2], 5000), line(&[1, 2], 5000)];
    let all = ceiling(&read(&short, Format::Mooncake), 0);
    assert_eq!((all.reused_tokens, all.tokens), (1024, 10_000));
}

#[test]
fn qwen_bailians_format_is_read_back_with_its_sessions() {
    let made = made(16, true);
    let mut last = std::collections::HashMap::new();
    let lines: Vec<Value> = made
        .iter()
        .enumerate()
        .map(|(nth, request)| {
            let parent = last.insert(request.session, nth);
            json!({"chat_id": nth, "parent_chat_id": parent.map_or(-1, |nth| nth as i64), "timestamp": request.second as f64,
                "input_length": request.input, "output_length": request.output, "type": "text", "turn": 1, "hash_ids": request.ids})
        })
        .collect();
    let trace = read(&lines, Format::QwenBailian);
    assert_eq!((trace.block, trace.has_sessions), (16, true));
    assert_eq!(trace.sessions as usize, last.len());
    assert_same(&trace, &directly(&made, 16));
    assert_eq!(trace.requests[7].at, 21_000_000);
}

/// Each session is an object; ids of two sessions mean nothing to each other.
#[test]
fn wekas_sessions_are_read_back_with_sub_agents_told_in_either_way() {
    let made = made(64, false);
    let of = |relative: bool| -> Vec<Value> {
        let sessions = made
            .iter()
            .map(|request| request.session)
            .max()
            .expect("some");
        let session = |session: u64| {
            let mut requests = Vec::new();
            for (nth, asked) in made
                .iter()
                .filter(|asked| asked.session == session)
                .enumerate()
            {
                let is_nested = nth % 4 == 3;
                let begin = asked.second as f64;
                let t = if is_nested && relative { 0.0 } else { begin };
                let request = json!({"t": t, "type": "n", "model": "m", "in": asked.input, "out": asked.output,
                    "hash_ids": asked.ids, "api_time": 0.5, "think_time": 1.0});
                requests.push(if is_nested {
                    json!({"t": begin, "type": "subagent", "agent_id": "a", "requests": [request]})
                } else {
                    request
                });
            }
            json!({"id": format!("trace_{session}"), "models": ["m"], "block_size": 64, "hash_id_scope": "local",
                "tool_tokens": 1, "system_tokens": 1, "requests": requests})
        };
        (0..=sessions).map(session).collect()
    };
    let expected = directly(&made, 64);
    for relative in [false, true] {
        let trace = read(&of(relative), Format::Weka);
        assert_same(&trace, &expected);
        assert!(trace.has_sessions);
        // Each waits for the answer before it, half a second after its request.
        let waits = trace
            .requests
            .iter()
            .filter(|request| request.after != contextpilot_trace::NONE);
        let waits: Vec<_> = waits.collect();
        assert!(waits.len() > 300);
        for request in waits {
            let other = trace.requests[request.after as usize];
            assert_eq!(other.session, request.session);
            assert_eq!(
                request.at,
                other.at + 500_000 + u64::from(request.pause) * 1000
            );
        }
    }
    // What has no prompt is counted.
    let mut reader = Reader::new();
    let none = json!({"id": 1, "block_size": 64, "requests": [{"t": 0, "in": 0, "out": 1, "hash_ids": []}]});
    assert!(reader.line(none.to_string().as_bytes()).is_ok());
    assert_eq!(reader.left_out().without_prompt, 1);
    // The same ids in two sessions are other blocks.
    let lines = [1, 2].map(|id| {
        json!({"id": id, "block_size": 64, "requests": [{"t": 0, "in": 128, "out": 1, "hash_ids": [1, 2]}]})
    });
    assert_eq!(ceiling(&read(&lines, Format::Weka), 0).reused_blocks, 0);
    let one_scope = lines.map(|mut line| {
        line["hash_id_scope"] = json!("global");
        line
    });
    assert_eq!(ceiling(&read(&one_scope, Format::Weka), 0).reused_blocks, 2);
}

#[test]
fn text_is_read_with_its_sessions_pauses_and_tools() {
    let mut reader = Reader::new();
    let mut text = |value: Value| match reader.line(value.to_string().as_bytes()) {
        Ok(Line::Text(text)) => *text,
        other => panic!("{other:?}"),
    };
    let said = json!([{"role": "system", "content": "Be kind."}, {"role": "user", "content": [{"type": "text", "text": "Tea?"}]}]);
    let first = text(
        json!({"session_id": "a", "model": "m", "input": said, "output_length": 50, "pre_gap": 0.0}),
    );
    assert_eq!(first.prompt, "system\nBe kind.\nuser\nTea?\n");
    assert_eq!((first.request.session, first.request.output), (Some(0), 50));
    let other = text(json!({"session_id": "b", "input": said, "output_length": 1, "pre_gap": 0.0}));
    assert_eq!(other.request.session, Some(1));
    let next = text(json!({"session_id": "a", "input": said, "output_length": 1, "pre_gap": 1.5}));
    // Two requests before it, and a second and a half after its answer.
    assert_eq!(next.request.after, Some((2, 1500)));

    let mut reader = Reader::new();
    let mut times = Vec::new();
    for line in [
        json!({"messages": said, "timestamp": 1_700_000_000.5, "user": "u"}),
        json!({"custom_id": "1", "method": "POST", "body": {"messages": said, "tools": [{"type": "function"}]}}),
        json!({"request": {"prompt": "Once"}, "response": {"usage": {"completion_tokens": 9}}, "created_at": 1_700_000_010_500_u64}),
    ] {
        let Ok(Line::Text(text)) = reader.line(line.to_string().as_bytes()) else {
            panic!("{line}");
        };
        assert_eq!(text.messages.is_some(), text.prompt != "Once");
        if text.prompt == "Once" {
            // Milliseconds are known by their size.
            assert_eq!(text.request.output, 9);
        }
        times.push(text.request.at);
    }
    assert_eq!(reader.format(), Some(Format::OpenAi));
    // What says no time comes with the one above it.
    let began = 1_700_000_000_500_000;
    assert_eq!(times, [began, began, began + 10_000_000]);
}

#[test]
fn a_chain_of_tokens_is_parted_into_blocks_whose_ids_stand_for_all_before_them() {
    let (count, ids) = chain([1, 2, 3, 4, 5], 2);
    assert_eq!((count, ids.len()), (5, 3));
    let (_, longer) = chain([1, 2, 3, 4, 5, 6, 7], 2);
    assert_eq!(longer[..2], ids[..2]);
    assert_ne!(longer[2], ids[2], "it was partly filled");
    assert_ne!(chain([9, 2, 3, 4], 2).1[1], ids[1]);
    assert_eq!(chain([], 2), (0, Vec::new()));
}

#[test]
fn what_is_damaged_is_refused_with_the_reason_and_counts_in_nothing() {
    let good = r#"{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}"#;
    let bad = [
        (
            r#"{"timestamp": 0, "input_length": 600, "hash_ids": [1, 2"#,
            "EOF",
        ),
        ("nonsense", "expected"),
        ("{}", "neither hash_ids"),
        (
            r#"{"hash_ids": [1.5], "input_length": 1}"#,
            "the id of a block",
        ),
        (r#"{"hash_ids": [1], "input_length": -1}"#, "invalid value"),
        (
            r#"{"hash_ids": [1], "input_length": 99999999999}"#,
            "too many",
        ),
        (r#"{"hash_ids": [1]}"#, "no input_length"),
        (
            r#"{"hash_ids": [1], "input_length": 1, "timestamp": -5}"#,
            "no time",
        ),
        (
            r#"{"hash_ids": [1], "input_length": 1, "timestamp": 1e300}"#,
            "no time",
        ),
        (
            r#"{"hash_ids": [1], "input_length": 1, "block_size": 0}"#,
            "block_size is 0",
        ),
        (
            r#"{"messages": []}"#,
            "OpenAI, and the lines before it are of Mooncake",
        ),
        (
            r#"{"requests": [{"t": 0, "in": 1, "hash_ids": [1]}]}"#,
            "WEKA, and the lines before",
        ),
    ];
    let mut reader = Reader::new();
    assert!(reader.line(good.as_bytes()).is_ok());
    for (line, why) in bad {
        let damaged: Damaged = reader.line(line.as_bytes()).expect_err(line);
        assert!(damaged.to_string().contains(why), "{line}: {damaged}");
        assert_eq!(damaged.is_cut, why == "EOF", "{line}");
    }
    assert!(reader.line(b"\xff\xfe").is_err());
    assert!(reader.line(good.as_bytes()).is_ok());
    let mut deep = Reader::new();
    let nested = |depth| {
        format!(
            "{}{}",
            r#"{"t":1,"requests":["#.repeat(depth),
            "]}".repeat(depth)
        )
    };
    assert!(
        deep.line(format!(r#"{{"block_size":64,"requests":[{}]}}"#, nested(100)).as_bytes())
            .is_err()
    );
}

/// Whatever numbers a trace has, nothing overflows.
#[test]
fn absurd_numbers_are_counted_or_refused() {
    let mut reader = Reader::new();
    let line = |ids: Value, input: u64, at: u64| json!({"timestamp": at, "input_length": input, "output_length": 1_u64 << 30, "hash_ids": ids, "block_size": 4_000_000_000_u64});
    let mut builder = Builder::new(4_000_000_000, Clock::Trace, None);
    for value in [
        line(json!([u64::MAX, 0, u64::MAX - 1]), 1 << 30, 0),
        line(json!([u64::MAX, -1, "x"]), 1, 1_000_000_000_000_000),
        line(json!([]), 5, 3),
    ] {
        let Ok(Line::Blocks(requests)) = reader.line(value.to_string().as_bytes()) else {
            panic!("{value}");
        };
        for request in &requests {
            // More blocks than its tokens fill are left out.
            assert_eq!(
                builder.push(request),
                Ok(request.ids.len().saturating_sub(1))
            );
        }
    }
    let more = line(json!([]), (1 << 30) + 1, 3).to_string();
    assert!(
        reader.line(more.as_bytes()).is_err(),
        "no prompt has as many"
    );
    let trace = builder.finish();
    assert_eq!(trace.requests.len(), 3);
    assert_eq!(ceiling(&trace, 0).reused_blocks, 1);
    let everything = curve(&trace, &[0, u64::MAX], 0);
    assert_eq!(everything[1], ceiling(&trace, 0));
    assert_eq!(
        everything[0],
        Reuse {
            reused_tokens: 0,
            reused_blocks: 0,
            ..everything[1]
        }
    );
    assert_eq!([0.0, -1.0, 1.5, f64::NAN].map(Sample::at_rate), [None; 4]);
}

/// Half of the blocks say nearly what all say.
#[test]
fn a_sample_estimates_the_curve() {
    let made = made(16, true);
    let traces = [None, Sample::at_rate(0.5)].map(|sample| {
        let mut builder = Builder::new(16, Clock::Trace, sample);
        for request in &made {
            let new = NewRequest {
                input: request.input,
                ids: request.ids.clone(),
                ..NewRequest::default()
            };
            assert_eq!(builder.push(&new), Ok(0));
        }
        builder.finish()
    });
    let rooms = [100, 400, 1600];
    let [whole, sampled] = traces.each_ref().map(|trace| curve(trace, &rooms, 0));
    for ((room, whole), sampled) in rooms.iter().zip(&whole).zip(&sampled) {
        let off = whole.of_tokens() - sampled.of_tokens();
        assert!(off.abs() < 0.05, "{room}: {off}");
    }
    let blocks = traces.map(|trace| trace.tree.blocks());
    assert!(
        blocks[1] * 3 < blocks[0] * 2 && blocks[1] * 3 > blocks[0],
        "{blocks:?}"
    );
}
