use super::*;

fn bytes(spec: &Spec) -> Vec<u8> {
    let mut out = Vec::new();
    write_to(&mut out, spec, &Chat::default()).expect("a Vec takes everything");
    out
}

/// Offset and value rows of a tensor, by a reader that shares nothing with the
/// writer but the format.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> &'a [u8] {
        let (head, tail) = self.0.split_at(n);
        self.0 = tail;
        head
    }
    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().expect("four bytes"))
    }
    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().expect("eight bytes"))
    }
    fn string(&mut self) -> &'a str {
        let n = self.u64() as usize;
        std::str::from_utf8(self.take(n)).expect("UTF-8")
    }
    fn value(&mut self, kind: u32) {
        match kind {
            4..=6 => drop(self.take(4)),
            7 => drop(self.take(1)),
            8 => drop(self.string()),
            9 => {
                let kind = self.u32();
                for _ in 0..self.u64() {
                    self.value(kind);
                }
            }
            other => panic!("value type {other}"),
        }
    }
}

/// Name, extents and offset of every tensor, and where the values begin.
fn table(file: &[u8]) -> (Vec<(String, Vec<u64>, u64)>, usize) {
    let mut reader = Reader(file);
    assert_eq!(reader.take(4), b"GGUF");
    assert_eq!(reader.u32(), 3);
    let (tensors, pairs) = (reader.u64(), reader.u64());
    for _ in 0..pairs {
        reader.string();
        let kind = reader.u32();
        reader.value(kind);
    }
    let table = (0..tensors)
        .map(|_| {
            let name = reader.string().to_owned();
            let extents: Vec<u64> = (0..reader.u32()).map(|_| reader.u64()).collect();
            assert_eq!(reader.u32(), 0, "type of {name}");
            (name, extents, reader.u64())
        })
        .collect();
    (table, (file.len() - reader.0.len()).next_multiple_of(32))
}

#[test]
fn the_table_accounts_for_every_byte() {
    for arch in Arch::ALL {
        let file = bytes(&Spec::new(arch));
        let (table, start) = table(&file);
        let mut expected = 0;
        for (name, extents, offset) in table {
            assert_eq!(offset, expected, "{arch} {name}");
            expected += (4 * extents.iter().product::<u64>()).next_multiple_of(32);
        }
        assert_eq!(start as u64 + expected, file.len() as u64, "{arch}");
    }
}

#[test]
fn equal_specs_equal_bytes() {
    let spec = Spec::new(Arch::Mamba);
    assert_eq!(bytes(&spec), bytes(&spec));
    let other = Spec {
        seed: 2,
        ..spec.clone()
    };
    assert_ne!(bytes(&spec), bytes(&other));
}

#[test]
fn a_projector_is_a_file_of_its_own() {
    for (kind, last) in [
        (ProjectorKind::Llava, "mm.2.weight"),
        (ProjectorKind::Qwen2Vl, "mm.2.weight"),
        (ProjectorKind::Idefics3, "mm.model.fc.weight"),
        (ProjectorKind::Ultravox, "mm.a.mlp.2.weight"),
        (ProjectorKind::LlavaUltravox, "mm.a.mlp.2.weight"),
    ] {
        let bytes = |projector: &Projector| {
            let mut out = Vec::new();
            projector::write_to(&mut out, projector).expect("a Vec takes everything");
            out
        };
        let projector = Projector::new(kind, 64);
        let file = bytes(&projector);
        assert_eq!(file, bytes(&projector), "{kind:?}");
        let (table, start) = table(&file);
        let values: u64 = table
            .iter()
            .map(|(_, extents, _)| (4 * extents.iter().product::<u64>()).next_multiple_of(32))
            .sum();
        assert_eq!(start as u64 + values, file.len() as u64, "{kind:?}");
        let last = table.iter().find(|(name, ..)| name == last);
        let outputs = last.map(|(_, extents, _)| extents[1]);
        assert_eq!(outputs, Some(64), "{kind:?}");
    }
    let error = write_projector(
        Path::new("/nonexistent/x.gguf"),
        &Projector::new(ProjectorKind::Llava, 0),
    );
    let error = error.expect_err("no width");
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn an_adapter_fits_its_model() {
    let bytes = |adapter: &Adapter| {
        let mut out = Vec::new();
        adapter::write_to(&mut out, adapter).expect("a Vec takes everything");
        out
    };
    let model = Spec::new(Arch::Llama);
    let ordinary = Adapter::new(&model);
    let invoked = Adapter {
        invocation: vec![300, 301],
        ..ordinary.clone()
    };
    for adapter in [&ordinary, &invoked] {
        let file = bytes(adapter);
        assert_eq!(file, bytes(adapter), "equal adapters, equal bytes");
        let (table, _) = table(&file);
        assert_eq!(table.len(), 2 * 2 * model.layers as usize);
        for (name, extents, _) in table {
            let (model_tensor, part) = name.rsplit_once('.').expect("a name and a part");
            assert!(model_tensor.ends_with(".weight"), "{name}");
            let expected = match part {
                "lora_a" => [64, 4],
                "lora_b" => [4, 64],
                other => panic!("{other}"),
            };
            assert_eq!(extents, expected, "{name}");
        }
    }
    assert_ne!(bytes(&ordinary), bytes(&invoked));
    let other = Adapter {
        seed: 2,
        ..ordinary.clone()
    };
    assert_ne!(bytes(&ordinary), bytes(&other));
    for wrong in [
        Adapter {
            rank: 0,
            ..ordinary.clone()
        },
        Adapter::new(&Spec::new(Arch::Mamba)),
        Adapter::new(&Spec { width: 60, ..model }),
    ] {
        let error = write_adapter(Path::new("/nonexistent/x.gguf"), &wrong);
        let error = error.expect_err("there can be no such adapter");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{wrong:?}");
    }
}

#[test]
fn the_draft_shares_the_first_layer() {
    let values = |spec: &Spec, wanted: &str| {
        let file = bytes(spec);
        let (table, start) = table(&file);
        let (_, extents, offset) = table
            .into_iter()
            .find(|(name, ..)| name == wanted)
            .expect(wanted);
        let begin = start + offset as usize;
        file[begin..begin + 4 * extents.iter().product::<u64>() as usize].to_vec()
    };
    let (big, draft) = (Spec::new(Arch::Llama), Spec::new(Arch::Draft));
    for name in ["token_embd.weight", "blk.0.attn_q.weight", "output.weight"] {
        assert_eq!(values(&big, name), values(&draft, name), "{name}");
    }
    assert!(draft.layers < big.layers);
}

#[test]
fn impossible_specs_are_refused_by_name() {
    let tiny = Spec::new(Arch::Llama);
    let wrong = [
        (
            Spec {
                width: 60,
                ..tiny.clone()
            },
            "width",
        ),
        (
            Spec {
                width: 0,
                ..tiny.clone()
            },
            "width",
        ),
        (
            Spec {
                layers: 0,
                ..tiny.clone()
            },
            "layers",
        ),
        (
            Spec {
                window: 0,
                ..tiny.clone()
            },
            "window",
        ),
        (
            Spec {
                context_length: 0,
                ..tiny.clone()
            },
            "context length",
        ),
        (
            Spec {
                width: 1 << 15,
                ..tiny
            },
            "not tiny",
        ),
    ];
    for (spec, part) in wrong {
        let error = write(Path::new("/nonexistent/x.gguf"), &spec).expect_err(part);
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn a_file_that_cannot_be_written_is_an_error() {
    let error = write(Path::new("/nonexistent/x.gguf"), &Spec::new(Arch::Llama));
    assert_eq!(
        error.expect_err("no such folder").kind(),
        io::ErrorKind::NotFound
    );
}

#[test]
fn the_vocabulary_has_one_token_per_character() {
    let tokens = vocab::tokens(&Spec::new(Arch::Llama), &Chat::default());
    assert_eq!(
        tokens
            .iter()
            .filter(|token| vocab::is_letter(token))
            .count(),
        52
    );
    assert_eq!(tokens.len(), 3 + 256 + 1 + 94 + 3);
    assert_eq!(Spec::tokens_in("two words\n"), 11);
}
