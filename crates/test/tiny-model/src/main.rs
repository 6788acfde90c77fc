//! `tiny-model [options] OUT.gguf`: a random-weight model for tests.
#![forbid(unsafe_code)]

use std::{io, path::PathBuf, process::ExitCode, str::FromStr};

use contextpilot_tiny_model::{
    Adapter, Arch, Projector, ProjectorKind, Spec, write, write_adapter, write_projector,
};

const HELP: &str = "\
Writes a random-weight GGUF model that a real llama-server loads.

Usage: tiny-model [OPTIONS] OUT.gguf

Options:
  --arch ARCH       llama (full attention), gemma2 (sliding window),
                    mamba (recurrent), draft (first layer of llama),
                    qwen2vl (M-RoPE), decision (answers /v1/systemone),
                    longrope (other positions beyond 1,024 tokens),
                    mtp (with heads that draft), qwen35 (the same,
                    hybrid), or eagle3, dflash or dspark (drafts for
                    llama of 4 layers or more) [llama]
  --ctx-train N     context length that the model claims, in tokens [131072]
  --seed N          equal seeds, equal weights [1]
  --layers N        blocks [2; drafts: 1]
  --width W         embedding length, a multiple of 16 [64]
  --window N        gemma2: sliding window, in tokens [64]
  --heads N         mtp, qwen35: heads that draft [1]
  --letter-pairs    two small letters are a token, too, so that most answers are
                    tokenized otherwise when they come back as text
  --projector KIND  not a model but a projector of the given width and seed, for
                    images: llava, idefics3, or qwen2vl for the architecture
                    qwen2vl; for sounds: ultravox; for both: llava-ultravox
  --adapter         not a model but a LoRA adapter for the model that the other
                    options but --seed describe
  --invocation IDS  for --adapter: tokens that activate it, as in 300,301
  -h, --help        this text

Example: a model that takes about 4 ms a token, rather than a tenth of one
  tiny-model --layers 8 --width 512 slow.gguf
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match parse(&arguments) {
        Ok(None) => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        Ok(Some(order)) => match order.write() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("tiny-model: cannot write {}: {error}", order.out.display());
                ExitCode::FAILURE
            }
        },
        Err(wrong) => {
            eprintln!("tiny-model: {wrong}; see tiny-model --help");
            ExitCode::from(2)
        }
    }
}

/// What is to be written.
#[derive(Debug, PartialEq)]
struct Order {
    spec: Spec,
    instead: Option<Instead>,
    out: PathBuf,
}

impl Order {
    fn write(&self) -> io::Result<()> {
        match &self.instead {
            None => write(&self.out, &self.spec),
            Some(Instead::Projector(projector)) => write_projector(&self.out, projector),
            Some(Instead::Adapter(adapter)) => write_adapter(&self.out, adapter),
        }
    }
}

/// What is written rather than the model.
#[derive(Debug, PartialEq)]
enum Instead {
    Projector(Projector),
    Adapter(Adapter),
}

/// `None`: help was asked for.
fn parse(arguments: &[String]) -> Result<Option<Order>, String> {
    let mut spec = Spec::new(Arch::Llama);
    let mut projector: Option<ProjectorKind> = None;
    let mut adapter = false;
    let mut invocation = Vec::new();
    let mut layers = None;
    let mut out = None;
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let (name, inline) = match argument.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
            _ => (argument.as_str(), None),
        };
        let mut value = || {
            inline
                .clone()
                .or_else(|| arguments.next().cloned())
                .ok_or_else(|| format!("{name} needs a value"))
        };
        match name {
            "-h" | "--help" => return Ok(None),
            "--arch" => spec.arch = value()?.parse()?,
            "--ctx-train" => spec.context_length = number(name, &value()?)?,
            "--seed" => spec.seed = number(name, &value()?)?,
            "--layers" => layers = Some(number(name, &value()?)?),
            "--width" => spec.width = number(name, &value()?)?,
            "--projector" => projector = Some(value()?.parse()?),
            "--adapter" => adapter = true,
            "--invocation" => {
                let ids = value()?;
                let ids = ids.split(',').map(|id| number(name, id));
                invocation = ids.collect::<Result<_, _>>()?;
            }
            "--letter-pairs" => spec.letter_pairs = true,
            "--heads" => spec.heads = number(name, &value()?)?,
            "--window" => spec.window = number(name, &value()?)?,
            _ if name.starts_with('-') => return Err(format!("unknown option {name}")),
            _ if out.is_some() => return Err(format!("one file only, not also {argument:?}")),
            _ => out = Some(PathBuf::from(argument)),
        }
    }
    spec.layers = layers.unwrap_or(Spec::new(spec.arch).layers);
    let instead = match projector {
        Some(_) if adapter => return Err("--projector or --adapter, not both".to_owned()),
        Some(kind) => Some(Instead::Projector(Projector {
            seed: spec.seed,
            ..Projector::new(kind, spec.width)
        })),
        None if adapter => Some(Instead::Adapter(Adapter {
            seed: spec.seed,
            invocation,
            ..Adapter::new(&spec)
        })),
        None if !invocation.is_empty() => return Err("--invocation is for --adapter".to_owned()),
        None => None,
    };
    match out {
        Some(out) => Ok(Some(Order { spec, instead, out })),
        None => Err("which file shall be written?".to_owned()),
    }
}

fn number<T: FromStr>(name: &str, text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("{name} wants a whole number, not {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Option<Order>, String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        parse(&words)
    }

    #[test]
    fn options_reach_the_spec() {
        let line = "--arch gemma2 --ctx-train 4096 --seed=7 --width 32 --window 16 out.gguf";
        let expected = Spec {
            context_length: 4096,
            seed: 7,
            width: 32,
            window: 16,
            ..Spec::new(Arch::Gemma2)
        };
        let expected = Order {
            spec: expected,
            instead: None,
            out: "out.gguf".into(),
        };
        assert_eq!(parsed(line), Ok(Some(expected)));
        let parsed = |line: &str| match parsed(line) {
            Ok(Some(order)) => order,
            other => panic!("{line}: {other:?}"),
        };
        assert_eq!(parsed("--arch draft x").spec.layers, 1);
        let expected = Projector {
            kind: ProjectorKind::Llava,
            width: 32,
            seed: 7,
        };
        let order = parsed("--projector llava --width 32 --seed 7 x");
        assert_eq!(order.instead, Some(Instead::Projector(expected)));
        let expected = Adapter {
            seed: 7,
            invocation: vec![300, 301],
            ..Adapter::new(&Spec {
                seed: 7,
                width: 32,
                ..Spec::new(Arch::Llama)
            })
        };
        let order = parsed("--adapter --invocation 300,301 --width 32 --seed 7 x");
        assert_eq!(order.instead, Some(Instead::Adapter(expected)));
    }

    #[test]
    fn wrong_arguments_are_named() {
        for (line, part) in [
            ("--arch gpt x", "\"gpt\""),
            ("--layers two x", "\"two\""),
            ("--projector none x", "\"none\""),
            ("--invocation 1 x", "--adapter"),
            ("--adapter --invocation 1,b x", "\"b\""),
            ("--adapter --projector llava x", "not both"),
            ("--seed", "--seed needs a value"),
            ("--wide 3 x", "--wide"),
            ("a b", "\"b\""),
            ("--seed 1", "which file"),
        ] {
            let wrong = parsed(line).expect_err(line);
            assert!(wrong.contains(part), "{line}: {wrong}");
        }
        assert_eq!(parsed("--help"), Ok(None));
    }
}
