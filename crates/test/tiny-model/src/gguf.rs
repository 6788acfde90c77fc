//! The GGUF container, version 3: a header of typed key-value pairs, a table of
//! tensors, then their values. All little-endian. Described in ggml's
//! `docs/gguf.md`.

use std::io::{self, Write};

use crate::rng::Rng;

const ALIGNMENT: u64 = 32;

// Value types.
const U32: u32 = 4;
const I32: u32 = 5;
const F32: u32 = 6;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// The one tensor type used here.
const TENSOR_F32: u32 = 0;

/// What stands in a tensor.
#[derive(Clone, Debug)]
pub(crate) enum Values {
    /// The same everywhere.
    Constant(f32),
    /// Uniformly random in ±the given bound.
    Random(f32),
    /// Random, but the first row (output feature 0) is zero.
    RandomExceptFirstRow(f32),
    /// Random, but each row begins with a given value; one value per row.
    RandomAfter(f32, Vec<f32>),
    /// These, row by row.
    Given(Vec<f32>),
    /// The first value is one, the others are another.
    FirstAndRest(f32, f32),
    /// In front a square with the first value on its diagonal, else zeros. Behind it random in ±the second value, but for the
    /// first row.
    DiagonalAndRandom(f32, f32),
}

/// A named matrix (or vector) of f32.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    /// Extents in ggml's order: the length of a row comes first.
    pub(crate) extents: Vec<u64>,
    pub(crate) values: Values,
    /// The name by which random values are drawn: tensors of one name have the same.
    pub(crate) drawn_as: String,
}

impl Tensor {
    pub(crate) fn new(name: impl Into<String>, extents: &[u64], values: Values) -> Self {
        let name = name.into();
        Self {
            drawn_as: name.clone(),
            name,
            extents: extents.to_vec(),
            values,
        }
    }

    fn bytes(&self) -> u64 {
        4 * self.extents.iter().product::<u64>()
    }
}

/// The key-value pairs.
#[derive(Debug, Default)]
pub(crate) struct Header {
    count: u64,
    pairs: Vec<u8>,
}

impl Header {
    fn pair(&mut self, key: &str, kind: u32) -> &mut Vec<u8> {
        self.count += 1;
        put_string(&mut self.pairs, key);
        put_u32(&mut self.pairs, kind);
        &mut self.pairs
    }

    fn array<T>(
        &mut self,
        key: &str,
        kind: u32,
        values: impl ExactSizeIterator<Item = T>,
        put: impl Fn(&mut Vec<u8>, T),
    ) {
        let out = self.pair(key, ARRAY);
        put_u32(out, kind);
        put_u64(out, values.len() as u64);
        values.for_each(|value| put(out, value));
    }

    pub(crate) fn u32(&mut self, key: &str, value: u32) {
        put_u32(self.pair(key, U32), value);
    }

    pub(crate) fn f32(&mut self, key: &str, value: f32) {
        put_u32(self.pair(key, F32), value.to_bits());
    }

    pub(crate) fn bool(&mut self, key: &str, value: bool) {
        self.pair(key, BOOL).push(u8::from(value));
    }

    pub(crate) fn string(&mut self, key: &str, value: &str) {
        put_string(self.pair(key, STRING), value);
    }

    pub(crate) fn strings<'a>(
        &mut self,
        key: &str,
        values: impl ExactSizeIterator<Item = &'a str>,
    ) {
        self.array(key, STRING, values, put_string);
    }

    pub(crate) fn f32s(&mut self, key: &str, values: impl ExactSizeIterator<Item = f32>) {
        self.array(key, F32, values, |out, value| put_u32(out, value.to_bits()));
    }

    pub(crate) fn u32s(&mut self, key: &str, values: impl ExactSizeIterator<Item = u32>) {
        self.array(key, U32, values, put_u32);
    }

    pub(crate) fn i32s(&mut self, key: &str, values: impl ExactSizeIterator<Item = i32>) {
        self.array(key, I32, values, |out, value| {
            out.extend_from_slice(&value.to_le_bytes());
        });
    }

    /// Everything up to the first tensor's values.
    fn write(&self, out: &mut impl Write, tensors: &[Tensor]) -> io::Result<()> {
        let mut head = b"GGUF".to_vec();
        put_u32(&mut head, 3);
        put_u64(&mut head, tensors.len() as u64);
        put_u64(&mut head, self.count);
        head.extend_from_slice(&self.pairs);
        let mut offset = 0;
        for tensor in tensors {
            put_string(&mut head, &tensor.name);
            put_u32(&mut head, tensor.extents.len() as u32);
            tensor.extents.iter().for_each(|&n| put_u64(&mut head, n));
            put_u32(&mut head, TENSOR_F32);
            put_u64(&mut head, offset);
            offset += tensor.bytes().next_multiple_of(ALIGNMENT);
        }
        let padded = (head.len() as u64).next_multiple_of(ALIGNMENT);
        head.resize(padded as usize, 0);
        out.write_all(&head)
    }
}

/// The whole file.
pub(crate) fn write(
    out: &mut impl Write,
    header: &Header,
    tensors: &[Tensor],
    seed: u64,
) -> io::Result<()> {
    header.write(out, tensors)?;
    tensors
        .iter()
        .try_for_each(|tensor| write_values(out, tensor, seed))
}

/// One tensor's values, padded to the alignment.
fn write_values(out: &mut impl Write, tensor: &Tensor, seed: u64) -> io::Result<()> {
    let mut rng = Rng::named(seed, &tensor.drawn_as);
    let row_length = tensor.extents[0];
    let rows: u64 = tensor.extents[1..].iter().product();
    for row in 0..rows {
        for column in 0..row_length {
            // Always drawn, so that a value depends on its place only.
            let random = rng.next();
            let value = match &tensor.values {
                Values::Constant(value) => *value,
                Values::Random(bound) => random * bound,
                Values::RandomExceptFirstRow(_) if row == 0 => 0.0,
                Values::RandomExceptFirstRow(bound) => random * bound,
                Values::RandomAfter(_, first) if column == 0 => first[row as usize],
                Values::RandomAfter(bound, _) => random * bound,
                Values::Given(all) => all[(row * row_length + column) as usize],
                Values::FirstAndRest(first, _) if column == 0 => *first,
                Values::FirstAndRest(_, rest) => *rest,
                Values::DiagonalAndRandom(diagonal, _) if column == row => *diagonal,
                Values::DiagonalAndRandom(_, bound) if column >= rows && row > 0 => random * bound,
                Values::DiagonalAndRandom(..) => 0.0,
            };
            out.write_all(&value.to_le_bytes())?;
        }
    }
    let bytes = tensor.bytes();
    let padding = bytes.next_multiple_of(ALIGNMENT) - bytes;
    out.write_all(&[0; ALIGNMENT as usize][..padding as usize])
}

fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_string(out: &mut Vec<u8>, value: &str) {
    put_u64(out, value.len() as u64);
    out.extend_from_slice(value.as_bytes());
}
