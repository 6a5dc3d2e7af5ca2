//! The trained rule by which nodes change their color: its weights, and the formulas of `gnn_training/network/rule.py`.

use std::sync::LazyLock;

use crate::crossover::Weights;
use crate::{Error, Result};

/// The model file that comes with the crate, for [`Rule::from_onnx`] and ONNX Runtime.
pub static MODEL: &[u8] = include_bytes!("../coloring_gnn.onnx");

pub(crate) const ACTIVE: usize = 16; // nodes in conflict that a round looks at,
pub(crate) const NODES_PER_ACTIVE: usize = 64; // and one more for every so many nodes of a large graph;
pub(crate) const MOVERS: usize = 4; // nodes that may move
pub(crate) const NODES_PER_MOVER: usize = 256;
pub(crate) const PERIOD: i64 = 4; // rounds from one question to the network to the next
pub(crate) const UNIT: i16 = 1024; // parts of 1: weights of conflicts are whole numbers of such parts
pub(crate) const NOT_MOVED: usize = 20; // age of a node before its first move
pub(crate) const CONTROLS: usize = 5; // tenure, tenure per node in conflict, its spread, margin, jitter
pub(crate) const HIDDEN: usize = 8;
pub(crate) const OUTPUTS: usize = CONTROLS + HIDDEN + 1; // of the part that reads the graph
pub(crate) const NODE_FEATURES: usize = 6;
pub(crate) const GRAPH_FEATURES: usize = 5;

const PRIME: i64 = 2_147_483_629;
const NOISE_ROWS: usize = 4093;
pub(crate) const TURNS: i64 = 1_048_573;
const NODE_STRIDE: i64 = 648_071;
const ROUND_STRIDE: i64 = 50_461;

/// The weights of the networks that steer the search, as an exported file has them in its metadata: of the rule, and of
/// crossover.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    pub(crate) by_graph: [[f32; GRAPH_FEATURES]; OUTPUTS],
    pub(crate) by_graph_bias: [f32; OUTPUTS],
    pub(crate) by_node: [[f32; NODE_FEATURES]; HIDDEN],
    pub(crate) out: [f32; HIDDEN],
    pub(crate) direct: [f32; NODE_FEATURES],
    /// Of plain conflicts, the size of the new class, and the rounds since the last move.
    pub(crate) moves: [f32; 3],
    pub(crate) crossover: Option<Weights>,
}

impl Default for Rule {
    /// The rule of the model that comes with the crate.
    fn default() -> Self {
        static SHIPPED: LazyLock<Rule> = LazyLock::new(|| Rule::from_onnx(MODEL).expect("the shipped file has a rule"));
        SHIPPED.clone()
    }
}

impl Rule {
    /// The rule of a file that the trainer has exported, version 0.6 or newer, from the file's bytes. Without weights of
    /// crossover, which files have from version 0.7 on, children take the largest classes.
    ///
    /// # Errors
    /// [`Error::Rule`] if the file is none or has no such rule, [`Error::Crossover`] if those weights are damaged.
    pub fn from_onnx(model: &[u8]) -> Result<Self> {
        let metadata = metadata(model).ok_or(Error::Rule)?;
        let text = |key: &[u8]| metadata.iter().find(|(found, _)| *found == key).map(|&(_, value)| value);
        let rule = text(b"rule").and_then(|rule| std::str::from_utf8(rule).ok()).ok_or(Error::Rule)?;
        let mut rule = Self::from_text(rule)?;
        if let Some(crossover) = text(b"crossover") {
            let weights = std::str::from_utf8(crossover).ok().and_then(Weights::from_text);
            rule.crossover = Some(weights.ok_or(Error::Crossover)?);
        }
        Ok(rule)
    }

    /// From the weights of the rule in JSON.
    pub(crate) fn from_text(text: &str) -> Result<Self> {
        let weights: Vec<f32> = serde_json::from_str(text).map_err(|_| Error::Rule)?;
        if weights.iter().any(|weight| !weight.is_finite()) {
            return Err(Error::Rule);
        }
        let mut rest = &weights[..];
        let rule = Self {
            by_graph: rows(&mut rest)?,
            by_graph_bias: row(&mut rest)?,
            by_node: rows(&mut rest)?,
            out: row(&mut rest)?,
            direct: row(&mut rest)?,
            moves: row(&mut rest)?,
            crossover: None,
        };
        if rest.is_empty() { Ok(rule) } else { Err(Error::Rule) }
    }
}

fn row<const N: usize>(rest: &mut &[f32]) -> Result<[f32; N]> {
    let (row, left) = rest.split_first_chunk().ok_or(Error::Rule)?;
    *rest = left;
    Ok(*row)
}

fn rows<const N: usize, const M: usize>(rest: &mut &[f32]) -> Result<[[f32; N]; M]> {
    let mut rows = [[0.0; N]; M];
    for place in &mut rows {
        *place = row(rest)?;
    }
    Ok(rows)
}

/// Keys and values in the metadata of a whole ONNX file: field 14 of its protocol buffer has them as 1 and 2.
fn metadata(model: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let mut fields = Fields(model);
    let entries: Vec<_> = fields.by_ref().filter(|&(number, _)| number == 14).collect();
    let part = |entry, part| Fields(entry).find(|&(number, _)| number == part).map_or(&[][..], |(_, content)| content);
    fields.0.is_empty().then(|| entries.iter().map(|&(_, entry)| (part(entry, 1), part(entry, 2))).collect())
}

/// Numbers and contents of the fields of a protocol buffer, before one that is cut; the content of a number is empty.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let mut rest = Fields(self.0);
        let tag = rest.varint()?;
        let length = match tag & 7 {
            0 => rest.varint().map(|_| 0)?,
            1 => 8,
            2 => rest.varint()?,
            5 => 4,
            _ => return None,
        };
        let (content, rest) = rest.0.split_at_checked(usize::try_from(length).ok()?)?;
        self.0 = rest;
        Some((tag >> 3, content))
    }
}

impl Fields<'_> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 127) << shift;
            if byte < 128 {
                return Some(value);
            }
        }
        None
    }
}

/// Features of a search. Python computes in f64 what it mixes with integers.
pub(crate) fn graph_features(nodes: f64, colors: f64, density: f32, conflicted: f32) -> [f32; GRAPH_FEATURES] {
    let (density, conflicted) = (f64::from(density), f64::from(conflicted));
    [nodes / 3.0 - 2.0, colors / 2.0 - 1.5, density - 0.5, conflicted / 2.0 - 1.0, colors - nodes + 2.3]
        .map(|x| x as f32)
}

/// What a conflict costs, from the output of the network, and what all conflicts cost more, in parts of `UNIT`.
#[inline(always)]
pub(crate) fn conflict_weight(z: f32, plain: f32) -> i32 {
    (f64::from(UNIT) * (1.0 + f64::from(z) / (1.0 + f64::from(z.abs())) + f64::from(plain)) + 0.5) as i32
}

/// Order of the nodes in conflict, if there are more than a round looks at: the largest first.
#[inline(always)]
pub(crate) fn turn(node: u32, seed: i64, round: i64) -> i64 {
    (NODE_STRIDE * i64::from(node) + seed + ROUND_STRIDE * round) % TURNS
}

/// Random numbers between 0 and 1, a row of one per color for every turn: the same as those of the exported file.
pub(crate) struct Noise {
    numbers: Vec<f32>,
    num_colors: usize,
}

impl Noise {
    pub(crate) fn new(num_colors: usize) -> Self {
        let cells = (0..NOISE_ROWS as i64).flat_map(|row| (0..num_colors as i64).map(move |column| (row, column)));
        let numbers = cells.map(|(row, column)| {
            let mut x = (row * 69_621 + 1) % PRIME;
            x = (x * x + column * 40_014 + 12_345) % PRIME;
            for _ in 0..3 {
                x = (x * (x + 1_000_003) + 7) % PRIME;
            }
            x as f32 / PRIME as f32
        });
        Self { numbers: numbers.collect(), num_colors }
    }

    #[inline(always)]
    pub(crate) fn row(&self, turn: i64) -> &[f32] {
        let start = turn as usize % NOISE_ROWS * self.num_colors;
        &self.numbers[start..start + self.num_colors]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// A file with these metadata alone; lengths take four bytes.
    fn file(metadata: &[(&[u8], &[u8])]) -> Vec<u8> {
        let field = |number: u8, content: &[u8]| {
            let length = [0, 7, 14].map(|shift| (content.len() >> shift) as u8 | 128);
            [&[number << 3 | 2], &length[..], &[(content.len() >> 21) as u8], content].concat()
        };
        metadata.iter().flat_map(|(key, value)| field(14, &[field(1, key), field(2, value)].concat())).collect()
    }

    #[test]
    fn weights_of_crossover_are_those_of_the_file_and_none_are_by_size() {
        let shipped = metadata(MODEL).unwrap();
        let text = |name: &[u8]| shipped.iter().find(|(key, _)| *key == name).unwrap().1;
        let read = |crossover: &[u8]| Rule::from_onnx(&file(&[(b"rule", text(b"rule")), (b"crossover", crossover)]));
        assert_eq!(read(text(b"crossover")).unwrap(), Rule::default());
        let old = Rule::from_onnx(&file(&[(b"rule", text(b"rule"))])).unwrap();
        assert_eq!(old, Rule { crossover: None, ..Rule::default() });
        let numbers: Value = serde_json::from_slice(text(b"crossover")).unwrap();
        let changed = |pointer: &str, value: Value| {
            let mut numbers = numbers.clone();
            *numbers.pointer_mut(pointer).unwrap() = value;
            read(numbers.to_string().as_bytes())
        };
        assert_ne!(changed("/layers/1/3/23/23", 0.5.into()).unwrap(), Rule::default());
        for (pointer, value) in [
            ("/out", Value::Null),
            ("/layers", Value::Null),
            ("/layers/0", [0.0].to_vec().into()),
            ("/direct", 1.into()),
            ("/first/9/23", 1e7.into()),
            ("/first/9/23", "1".into()),
            ("/first_bias", vec![0.0; 25].into()),
            ("/out", Value::Array(Vec::new())),
        ] {
            assert!(matches!(changed(pointer, value), Err(Error::Crossover)), "{pointer}");
        }
        for damaged in [&b""[..], b"[]", b"{}", b"\xff", &text(b"crossover")[1..]] {
            assert!(matches!(read(damaged), Err(Error::Crossover)));
        }
        let text = std::str::from_utf8(text(b"crossover")).unwrap();
        assert!(matches!(read(text.replacen("[[-0", "[[NaN, -0", 1).as_bytes()), Err(Error::Crossover)));
    }
}
