//! Does the simulator do what the server does?
//!
//! *At the recorded setting*: each sequential trace of the exactness tests is played to a real
//! server that records it. What the recording says of each prompt must be what the engine answered,
//! and what the simulator makes of the recording must be the same, to the token.
//!
//! ```text
//! cargo test --test simulation [-- NAME...]
//! ```

#[path = "../exactness/cases.rs"]
#[allow(dead_code, reason = "the exactness tests use more of it")]
mod cases;
#[path = "../exactness/prompts.rs"]
mod prompts;
mod recorded;

use std::process::ExitCode;

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let mut failed = 0;
    for case in cases::all() {
        let chosen = wanted.is_empty() || wanted.iter().any(|name| case.name.contains(&**name));
        if !chosen {
            continue;
        }
        let name = case.name;
        match recorded::compare(&case) {
            Ok(recorded::Verdict::Equal(prompts)) => {
                println!("test {name} ... ok ({prompts} prompts)")
            }
            Ok(recorded::Verdict::LeftOut(why)) => println!("test {name} ... left out: {why}"),
            Err(error) => {
                failed += 1;
                println!("test {name} ... FAILED\n  {error}");
            }
        }
    }
    println!("{failed} failed");
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
