//! States as the engine writes them, made by hand. Where each byte is says `src/layout.rs`; this
//! is written a second time, cell by cell, so that a mistake there is seen here.

#![allow(dead_code)] // Each test program uses a part of it.

pub(crate) const MAGIC: u32 = 0xaf14_3cd8;

/// A context: what does not depend on the tokens.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    pub(crate) magic: bool,
    /// 0: until August 2025.
    pub(crate) streams: u32,
    /// Not in early 2025.
    pub(crate) owners: bool,
    /// Extra words of each cell.
    pub(crate) extra: usize,
    pub(crate) transposed: bool,
    /// Words behind the number of layers: none or two.
    pub(crate) words: Vec<u32>,
    /// The size of a K row of each layer, bytes.
    pub(crate) k: Vec<usize>,
    /// Elements of two bytes in a V row of each layer; none, if there is no V.
    pub(crate) v: Vec<usize>,
}

impl Engine {
    pub(crate) fn dense(layers: usize, row: usize) -> Self {
        Self {
            magic: true,
            streams: 1,
            owners: true,
            extra: 0,
            transposed: false,
            words: vec![0, 0],
            k: vec![row; layers],
            v: vec![row / 2; layers],
        }
    }

    /// The state of a sequence whose cells hold these positions.
    pub(crate) fn state(&self, sequence: i32, positions: &[usize]) -> Vec<u8> {
        let mut out = Vec::new();
        let u32 = |out: &mut Vec<u8>, n: u32| out.extend(n.to_le_bytes());
        if self.magic {
            u32(&mut out, MAGIC);
            out.extend(sequence.to_le_bytes());
        }
        if self.streams > 0 {
            u32(&mut out, self.streams);
        }
        let stream = match self.streams {
            0 | 1 => 0,
            _ => sequence as u32,
        };
        for nth in 0..self.streams.max(1) {
            if nth != stream {
                u32(&mut out, 0);
                continue;
            }
            u32(&mut out, positions.len() as u32);
            if positions.is_empty() {
                continue;
            }
            for position in positions {
                u32(&mut out, *position as u32);
                if !self.owners {
                    u32(&mut out, 0);
                    continue;
                }
                u32(&mut out, 1);
                out.extend(self.extra_words(*position));
                out.extend(sequence.to_le_bytes());
            }
            u32(&mut out, u32::from(self.transposed));
            u32(&mut out, self.k.len() as u32);
            self.words.iter().for_each(|word| u32(&mut out, *word));
            for (layer, row) in self.k.iter().enumerate() {
                out.extend(1_i32.to_le_bytes());
                out.extend((*row as u64).to_le_bytes());
                for position in positions {
                    out.extend(self.k_row(layer, *position));
                }
            }
            for (layer, elements) in self.v.iter().enumerate() {
                out.extend(7_i32.to_le_bytes());
                if self.transposed {
                    u32(&mut out, 2);
                    u32(&mut out, *elements as u32);
                    for element in 0..*elements {
                        for position in positions {
                            let row = self.v_row(layer, *position);
                            out.extend(&row[2 * element..2 * element + 2]);
                        }
                    }
                } else {
                    out.extend((2 * *elements as u64).to_le_bytes());
                    for position in positions {
                        out.extend(self.v_row(layer, *position));
                    }
                }
            }
        }
        out
    }

    /// What a chunk of these positions has, by hand.
    pub(crate) fn chunk(&self, positions: std::ops::Range<usize>) -> Vec<u8> {
        let mut out = Vec::new();
        for position in positions.clone() {
            out.extend(self.extra_words(position));
        }
        for layer in 0..self.k.len() {
            for position in positions.clone() {
                out.extend(self.k_row(layer, position));
            }
        }
        for (layer, elements) in self.v.iter().enumerate() {
            if self.transposed {
                for element in 0..*elements {
                    for position in positions.clone() {
                        let row = self.v_row(layer, position);
                        out.extend(&row[2 * element..2 * element + 2]);
                    }
                }
            } else {
                for position in positions.clone() {
                    out.extend(self.v_row(layer, position));
                }
            }
        }
        out
    }

    fn extra_words(&self, position: usize) -> Vec<u8> {
        let words = (0..self.extra).map(|word| (word * 1000 + position) as i32);
        words.flat_map(i32::to_le_bytes).collect()
    }

    fn k_row(&self, layer: usize, position: usize) -> Vec<u8> {
        noise(layer * 2, position, self.k[layer])
    }

    fn v_row(&self, layer: usize, position: usize) -> Vec<u8> {
        noise(layer * 2 + 1, position, self.v[layer] * 2)
    }
}

/// Bytes that are hardly ever the same for two rows. As numbers of any kind they are finite: no exponent has all of its bits.
fn noise(layer: usize, position: usize, length: usize) -> Vec<u8> {
    let mut seed = (layer as u64) << 32 | position as u64 | 1 << 63;
    let mut next = || {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 40) as u8 & 0xbf
    };
    (0..length).map(|_| next()).collect()
}

/// Contexts of all kinds.
pub(crate) fn engines() -> Vec<Engine> {
    let dense = Engine::dense(3, 8);
    let mut all = Vec::new();
    for magic in [false, true] {
        for transposed in [false, true] {
            for extra in [0, 2, 3] {
                for streams in [1, 4] {
                    for words in [vec![], vec![0, 0], vec![64, 0], vec![64, 128]] {
                        all.push(Engine {
                            magic,
                            streams,
                            extra,
                            transposed,
                            words,
                            ..dense.clone()
                        });
                    }
                }
            }
        }
    }
    for transposed in [false, true] {
        for owners in [false, true] {
            all.push(Engine {
                magic: false,
                streams: 0,
                owners,
                transposed,
                words: vec![],
                ..dense.clone()
            });
        }
    }
    // Rows of several sizes, no V, one layer, a layer without rows.
    for (k, v) in [
        (vec![2, 66, 34], vec![1, 17, 5]),
        (vec![8, 8], vec![]),
        (vec![6], vec![3]),
        (vec![0, 8], vec![1, 4]),
    ] {
        for transposed in [false, true] {
            all.push(Engine {
                transposed,
                k: k.clone(),
                v: v.clone(),
                ..dense.clone()
            });
        }
    }
    all
}
