use std::time::Instant;

use crate::{Error, Result};

/// Columns of `node_features`.
pub const NUM_FEATURES: usize = 16;

/// Nodes of a DIMACS graph, at most: a header that claims more is wrong, or the graph is too large to color.
const MAX_READ_NODES: usize = 1_000_000;

/// Nodes of highest degree from which a clique is grown.
const CLIQUE_STARTS: usize = 1000;

/// An undirected graph of the nodes `0..num_nodes()`, without loops and doubled edges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    /// `neighbors[offsets[v]..offsets[v + 1]]` are those of `v`, sorted.
    offsets: Vec<usize>,
    neighbors: Vec<usize>,
}

impl Graph {
    /// From pairs of nodes that count from 0. Loops are dropped, directions and repeats folded into one edge.
    ///
    /// ```
    /// # use coloring_gnn::Graph;
    /// let graph = Graph::from_edges(3, [(0, 1), (1, 0), (2, 2)])?;
    /// assert_eq!((graph.num_nodes(), graph.num_edges()), (3, 1));
    /// assert!(Graph::from_edges(3, [(1, 3)]).is_err());
    /// # Ok::<(), coloring_gnn::Error>(())
    /// ```
    pub fn from_edges(num_nodes: usize, edges: impl IntoIterator<Item = (usize, usize)>) -> Result<Self> {
        if num_nodes == 0 {
            return Err(Error::NoNodes);
        }
        let mut both = Vec::new();
        for (u, v) in edges {
            if u.max(v) >= num_nodes {
                return Err(Error::Edge { u, v, num_nodes });
            }
            if u != v {
                both.extend([(u, v), (v, u)]);
            }
        }
        both.sort_unstable();
        both.dedup();
        let mut offsets = vec![0; num_nodes + 1];
        for &(u, _) in &both {
            offsets[u + 1] += 1;
        }
        for v in 0..num_nodes {
            offsets[v + 1] += offsets[v];
        }
        let neighbors = both.into_iter().map(|(_, v)| v).collect();
        Ok(Self { offsets, neighbors })
    }

    /// From the cells of a square matrix, row after row; a cell on either side of the diagonal makes an edge.
    ///
    /// ```
    /// # use coloring_gnn::Graph;
    /// let path = Graph::from_adjacency(3, [0, 1, 0, 1, 0, 1, 0, 1, 0].map(|cell| cell != 0))?;
    /// assert_eq!(path.neighbors(1), [0, 2]);
    /// # Ok::<(), coloring_gnn::Error>(())
    /// ```
    pub fn from_adjacency(num_nodes: usize, cells: impl IntoIterator<Item = bool>) -> Result<Self> {
        let mut found = 0;
        let cells = cells.into_iter().inspect(|_| found += 1).enumerate();
        let set: Vec<usize> = cells.filter_map(|(i, cell)| cell.then_some(i)).collect();
        if num_nodes.checked_mul(num_nodes) != Some(found) {
            return Err(Error::Adjacency { found, num_nodes });
        }
        Self::from_edges(num_nodes, set.into_iter().map(|i| (i / num_nodes, i % num_nodes)))
    }

    /// From the text of a DIMACS `.col` file, whose nodes count from 1, a million of them at most. A wrong number of
    /// edges in the header is forgiven, since many files have one. Lines end in LF, CRLF or CR.
    ///
    /// ```
    /// # use coloring_gnn::Graph;
    /// let graph = Graph::from_dimacs("c a path\np edge 3 2\ne 1 2\ne 2 3\n")?;
    /// assert_eq!(graph.num_edges(), 2);
    /// # Ok::<(), coloring_gnn::Error>(())
    /// ```
    pub fn from_dimacs(text: impl AsRef<[u8]>) -> Result<Self> {
        let text = text.as_ref();
        let mut num_nodes = 0;
        let mut edges = Vec::new();
        for (number, content) in lines(text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)).enumerate() {
            let fail = |reason| Error::Dimacs { line: number + 1, reason };
            let is_blank = |byte: &u8| byte.is_ascii_whitespace() || *byte == b'\x0b';
            let words: Vec<&[u8]> = content.split(is_blank).filter(|word| !word.is_empty()).collect();
            let number_at = |place: usize| words.get(place).and_then(|word| whole(word));
            match (words.first().copied(), number_at(1), number_at(2)) {
                (Some(b"e"), Some(u), Some(v)) if u.min(v) > 0 && u.max(v) <= num_nodes => {
                    edges.push((u - 1, v - 1));
                }
                (Some(b"e"), Some(u), Some(v)) => {
                    return Err(fail(format!("edge {u}-{v} leaves the nodes 1..{num_nodes} of the header")));
                }
                (Some(b"p"), None, Some(n))
                    if num_nodes == 0 && number_at(3).is_some() && matches!(words[1], b"edge" | b"edges" | b"col") =>
                {
                    if !(1..=MAX_READ_NODES).contains(&n) {
                        return Err(fail(format!("{n} nodes; a graph has 1 to {MAX_READ_NODES}")));
                    }
                    num_nodes = n;
                }
                (None | Some(b"n" | b"d" | b"v" | b"x"), ..) => {}
                (Some(word), ..) if word.starts_with(b"c") => {}
                _ => {
                    let content = String::from_utf8_lossy(&content[..content.len().min(40)]);
                    return Err(fail(format!("{content:?} is neither `c`, one `p edge N M` nor `e u v`")));
                }
            }
        }
        if num_nodes == 0 {
            return Err(Error::Dimacs { line: 1, reason: "no `p edge N M` follows".into() });
        }
        Self::from_edges(num_nodes, edges)
    }

    /// Number of nodes, at least 1.
    pub fn num_nodes(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Number of undirected edges.
    pub fn num_edges(&self) -> usize {
        self.neighbors.len() / 2
    }

    /// The nodes that share an edge with `node`, ascending.
    pub fn neighbors(&self, node: usize) -> &[usize] {
        &self.neighbors[self.offsets[node]..self.offsets[node + 1]]
    }

    fn degree(&self, node: usize) -> usize {
        self.offsets[node + 1] - self.offsets[node]
    }

    /// Both directions of every edge, as (source, target).
    pub(crate) fn directed(&self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.num_nodes()).flat_map(|u| self.neighbors(u).iter().map(move |&v| (u, v)))
    }

    /// Counts the colors of a coloring, one per node, after looking at every edge.
    ///
    /// The one check that finds a wrongly built edge list: the network then colors another graph, without an error.
    ///
    /// # Errors
    /// [`Error::Improper`] with the first edge whose ends are equal, or if there are not as many colors as nodes.
    pub fn check(&self, colors: &[usize]) -> Result<usize> {
        if colors.len() != self.num_nodes() {
            return Err(Error::Improper(format!("{} colors for {} nodes", colors.len(), self.num_nodes())));
        }
        if let Some((u, v)) = self.directed().find(|&(u, v)| colors[u] == colors[v]) {
            return Err(Error::Improper(format!("nodes {u} and {v} share an edge and color {}", colors[u])));
        }
        let mut used = colors.to_vec();
        used.sort_unstable();
        used.dedup();
        Ok(used.len())
    }

    /// Size of a clique, grown greedily from each of the nodes of highest degree: no coloring has fewer colors.
    pub fn clique_size(&self) -> usize {
        self.clique_until(None)
    }

    /// As `clique_size`, with the starts that the time allows.
    pub(crate) fn clique_until(&self, deadline: Option<Instant>) -> usize {
        let mut starts: Vec<usize> = (0..self.num_nodes()).collect();
        starts.sort_by_key(|&v| std::cmp::Reverse(self.degree(v)));
        let in_time = |_: &usize| deadline.is_none_or(|deadline| Instant::now() < deadline);
        let mut met = vec![0; self.num_nodes()]; // by node: members of the clique beside it
        let grown = starts.into_iter().take(CLIQUE_STARTS).take_while(in_time).map(|start| {
            met.fill(0);
            let (mut size, mut newest) = (0, Some(start));
            while let Some(node) = newest.take() {
                size += 1;
                met[node] = usize::MAX;
                for &v in self.neighbors(node) {
                    if met[v] == size - 1 {
                        met[v] = size;
                        newest = newest.filter(|&best| self.degree(best) >= self.degree(v)).or(Some(v));
                    }
                }
            }
            size
        });
        grown.max().unwrap_or(1)
    }

    /// `node_features`, rows of [`NUM_FEATURES`]: degree over the largest, local clustering, degree over n - 1,
    /// degree² over the largest, triangles / 100, then zeros. Files of this repository do not look at them.
    ///
    /// ```
    /// # use coloring_gnn::Graph;
    /// let triangle_and_tail = Graph::from_edges(4, [(0, 1), (1, 2), (2, 0), (2, 3)])?;
    /// let features = triangle_and_tail.node_features();
    /// assert_eq!(features[..5], [2. / 3., 1., 2. / 3., 4. / 3., 0.01]);
    /// # Ok::<(), coloring_gnn::Error>(())
    /// ```
    pub fn node_features(&self) -> Vec<f32> {
        let triangles = self.triangles();
        let largest = (0..self.num_nodes()).map(|v| self.degree(v)).max().unwrap_or(0).max(1) as f32;
        let others = (self.num_nodes() - 1).max(1) as f32;
        let mut features = vec![0.0; self.num_nodes() * NUM_FEATURES];
        for (v, row) in features.chunks_exact_mut(NUM_FEATURES).enumerate() {
            let (degree, closed) = (self.degree(v) as f32, triangles[v] as f32);
            row[0] = degree / largest;
            row[1] = if degree < 2.0 { 0.0 } else { closed / (degree * (degree - 1.0) / 2.0) };
            row[2] = degree / others;
            row[3] = degree * degree / largest;
            row[4] = closed / 100.0;
        }
        features
    }

    /// Triangles at every node, in O(E^1.5): edges lead to the node of higher degree, so that no list is long.
    fn triangles(&self) -> Vec<usize> {
        let rank = |v: usize| (self.degree(v), v);
        let up = |u: usize| self.neighbors(u).iter().copied().filter(move |&v| rank(v) > rank(u));
        let ahead: Vec<Vec<usize>> = (0..self.num_nodes()).map(|u| up(u).collect()).collect();
        let mut met = vec![false; self.num_nodes()];
        let mut triangles = vec![0; self.num_nodes()];
        for u in 0..self.num_nodes() {
            ahead[u].iter().for_each(|&v| met[v] = true);
            for &v in &ahead[u] {
                let mut closed = 0;
                for &w in &ahead[v] {
                    let third = usize::from(met[w]); // added, not asked: the branch would be a coin toss
                    closed += third;
                    triangles[w] += third;
                }
                triangles[u] += closed;
                triangles[v] += closed;
            }
            ahead[u].iter().for_each(|&v| met[v] = false);
        }
        triangles
    }
}

/// Lines that end in LF, CRLF or CR.
fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let ended_by_lf = text.split(|&byte| byte == b'\n');
    ended_by_lf.flat_map(|line| line.strip_suffix(b"\r").unwrap_or(line).split(|&byte| byte == b'\r'))
}

/// The number in a word of up to 18 ASCII digits.
fn whole(word: &[u8]) -> Option<usize> {
    let is_number = word.len() <= 18 && word.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(word).ok().filter(|_| is_number)?.parse().ok()
}
