//! The rows of one table that lie on one shard, and what an optimizer does to them.
//!
//! Rows lie in chunks. A snapshot takes references to the chunks; whoever updates a chunk that a
//! snapshot still holds copies it first. It knows nothing of calls, so that the same code runs
//! behind any transport.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashMap;

/// Rows of a chunk, which is what an update copies while a snapshot is written.
const CHUNK_ROWS: usize = 256;
/// What a row costs beside its floats: its id, and its place in the index.
const INDEX_BYTES: u64 = 40;
/// Where the accumulators of Adagrad begin, as in TensorFlow.
const FIRST_ACCUMULATOR: f32 = 0.1;

/// How gradients change a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Optimizer {
    /// `row -= rate * gradient`.
    Sgd,
    /// `sum += gradient^2; row -= rate * gradient / sqrt(sum)`, element by element.
    Adagrad,
}

/// What all rows of a table have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layout {
    /// Floats of a row.
    pub dim: usize,
    /// How gradients change it.
    pub optimizer: Optimizer,
    /// New rows depend on this and their id alone.
    pub seed: u64,
    /// Elements of new rows are spread evenly over `-scale..scale`.
    pub scale: f32,
}

impl Layout {
    /// Floats that are kept for a row.
    fn stride(&self) -> usize {
        match self.optimizer {
            Optimizer::Sgd => self.dim,
            Optimizer::Adagrad => 2 * self.dim,
        }
    }

    /// Memory that a row is counted with.
    pub fn row_bytes(&self) -> u64 {
        self.stride() as u64 * 4 + INDEX_BYTES
    }

    fn make_row(&self, id: u64, row: &mut Vec<f32>) {
        let start = mix(self.seed ^ mix(id));
        for element in 0..self.dim as u64 {
            let bits = mix(start.wrapping_add(element)) >> 40;
            let share = bits as f32 / (1 << 24) as f32;
            row.push((2.0 * share - 1.0) * self.scale);
        }
        row.resize(row.len() + self.stride() - self.dim, FIRST_ACCUMULATOR);
    }
}

/// Spreads ids: SplitMix64's finaliser. Servers and shards are chosen by different halves.
pub fn mix(id: u64) -> u64 {
    let mut bits = id.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Of how many something may be, and how many there are, of all shards together.
#[derive(Debug)]
pub struct Budget {
    used: AtomicU64,
    max: u64,
}

impl Budget {
    /// Nothing is used yet.
    pub fn new(max: u64) -> Self {
        let used = AtomicU64::new(0);
        Self { used, max }
    }

    /// What is used.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// What may be used.
    pub fn max(&self) -> u64 {
        self.max
    }

    fn take(&self, amount: u64) -> bool {
        let grown = |used: u64| used.checked_add(amount).filter(|used| *used <= self.max);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        self.used.fetch_update(set, fetch, grown).is_ok()
    }

    fn give_back(&self, amount: u64) {
        self.used.fetch_sub(amount, Ordering::Relaxed);
    }
}

/// What a table may take: rows of its own, and memory that it shares with the other tables.
#[derive(Clone, Debug)]
pub struct Budgets {
    /// Rows of this table.
    pub rows: Arc<Budget>,
    /// Bytes of all tables.
    pub bytes: Arc<Budget>,
}

/// Why there is no place for another row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The table has all the rows that it may have.
    Rows,
    /// All tables together have all the memory that they may have.
    Bytes,
}

/// Rows that lie one behind the other.
#[derive(Clone, Debug, Default)]
pub struct Chunk {
    ids: Vec<u64>,
    values: Vec<f32>,
}

impl Chunk {
    /// The id, the elements and, with Adagrad, the sums of each row.
    pub fn rows(&self, layout: Layout) -> impl Iterator<Item = (u64, &[f32], &[f32])> {
        let values = self.values.chunks_exact(layout.stride());
        let rows = values.map(move |row| row.split_at(layout.dim));
        let rows = self.ids.iter().zip(rows);
        rows.map(|(id, (elements, sums))| (*id, elements, sums))
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}

/// The rows of a table on one shard.
#[derive(Debug)]
pub struct Part {
    layout: Layout,
    budgets: Budgets,
    index: HashMap<u64, u32>,
    chunks: Vec<Arc<Chunk>>,
    sums: Sums,
}

/// Gradients of one batch, summed by row. Kept between batches for its memory.
#[derive(Debug, Default)]
struct Sums {
    places: HashMap<u32, usize>,
    rows: Vec<u32>,
    gradients: Vec<f32>,
}

impl Part {
    /// A part without rows.
    pub fn new(layout: Layout, budgets: Budgets) -> Self {
        Self {
            layout,
            budgets,
            index: HashMap::new(),
            chunks: Vec::new(),
            sums: Sums::default(),
        }
    }

    /// Finds the rows of these ids, in their order, and makes those that are not there.
    ///
    /// # Errors
    /// There is no place for a row; those before it were made.
    pub fn find(&mut self, ids: impl Iterator<Item = u64>) -> Result<Vec<u32>, Full> {
        ids.map(|id| match self.index.get(&id) {
            Some(row) => Ok(*row),
            None => self.make(id),
        })
        .collect()
    }

    /// The elements of a row that was found.
    #[inline]
    pub fn row(&self, row: u32) -> &[f32] {
        let start = row as usize % CHUNK_ROWS * self.layout.stride();
        &self.chunks[row as usize / CHUNK_ROWS].values[start..start + self.layout.dim]
    }

    /// Changes rows that were found by gradients. Those of the same row are summed first, in the
    /// order in which they come, and the row is changed once. Elements that would not be finite any
    /// more stay as they are; returned is how many.
    pub fn update<'a>(
        &mut self,
        gradients: impl Iterator<Item = (u32, &'a [f32])>,
        rate: f32,
    ) -> u64 {
        let mut sums = std::mem::take(&mut self.sums);
        sums.clear();
        for (row, gradient) in gradients {
            sums.add(row, gradient);
        }
        let summed = sums.gradients.chunks_exact(self.layout.dim);
        let rows = sums.rows.iter().zip(summed);
        let skipped = rows.map(|(row, gradient)| self.step(*row, gradient, rate));
        let skipped = skipped.sum();
        self.sums = sums;
        skipped
    }

    /// Puts a row there as a snapshot has it. Whether it is new.
    ///
    /// # Errors
    /// There is no place for it.
    pub fn restore(&mut self, id: u64, elements: &[f32], sums: &[f32]) -> Result<bool, Full> {
        if self.index.contains_key(&id) {
            return Ok(false);
        }
        let row = self.make(id)?;
        let kept = self.row_mut(row);
        kept[..elements.len()].copy_from_slice(elements);
        kept[elements.len()..].copy_from_slice(sums);
        Ok(true)
    }

    /// All rows as they are now: whatever is changed later is copied first.
    pub fn freeze(&self) -> Vec<Arc<Chunk>> {
        self.chunks.clone()
    }

    fn make(&mut self, id: u64) -> Result<u32, Full> {
        let row = u32::try_from(self.index.len()).map_err(|_| Full::Rows)?;
        if !self.budgets.rows.take(1) {
            return Err(Full::Rows);
        }
        if !self.budgets.bytes.take(self.layout.row_bytes()) {
            self.budgets.rows.give_back(1);
            return Err(Full::Bytes);
        }
        if (row as usize).is_multiple_of(CHUNK_ROWS) {
            self.chunks.push(Arc::default());
        }
        let last = self.chunks.last_mut().expect("one was pushed before");
        let chunk = Arc::make_mut(last);
        chunk.ids.push(id);
        self.layout.make_row(id, &mut chunk.values);
        self.index.insert(id, row);
        Ok(row)
    }

    #[inline]
    fn row_mut(&mut self, row: u32) -> &mut [f32] {
        let stride = self.layout.stride();
        let start = row as usize % CHUNK_ROWS * stride;
        let chunk = Arc::make_mut(&mut self.chunks[row as usize / CHUNK_ROWS]);
        &mut chunk.values[start..start + stride]
    }

    /// Changes a row, and counts the elements that it leaves alone.
    fn step(&mut self, row: u32, gradient: &[f32], rate: f32) -> u64 {
        let dim = self.layout.dim;
        let optimizer = self.layout.optimizer;
        let (elements, sums) = self.row_mut(row).split_at_mut(dim);
        let mut skipped = 0;
        match optimizer {
            Optimizer::Sgd => {
                for (element, gradient) in elements.iter_mut().zip(gradient) {
                    let changed = *element - rate * gradient;
                    let is_finite = changed.is_finite();
                    *element = if is_finite { changed } else { *element };
                    skipped += u64::from(!is_finite);
                }
            }
            Optimizer::Adagrad => {
                for ((element, sum), gradient) in elements.iter_mut().zip(sums).zip(gradient) {
                    let grown = *sum + gradient * gradient;
                    let changed = *element - rate * gradient / grown.sqrt();
                    let is_finite = grown.is_finite() && changed.is_finite();
                    (*element, *sum) = match is_finite {
                        true => (changed, grown),
                        false => (*element, *sum),
                    };
                    skipped += u64::from(!is_finite);
                }
            }
        }
        skipped
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let rows = self.index.len() as u64;
        self.budgets.rows.give_back(rows);
        self.budgets.bytes.give_back(rows * self.layout.row_bytes());
    }
}

impl Sums {
    fn clear(&mut self) {
        self.places.clear();
        self.rows.clear();
        self.gradients.clear();
    }

    fn add(&mut self, row: u32, gradient: &[f32]) {
        let place = *self.places.entry(row).or_insert(self.rows.len());
        if place == self.rows.len() {
            self.rows.push(row);
            self.gradients.extend_from_slice(gradient);
            return;
        }
        let sum = &mut self.gradients[place * gradient.len()..][..gradient.len()];
        for (sum, element) in sum.iter_mut().zip(gradient) {
            *sum += element;
        }
    }
}
