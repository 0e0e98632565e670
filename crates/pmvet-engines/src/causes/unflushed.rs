//! Objects that were never flushed: one flush is missing, however many lines the object has.

use pmvet_model::LineId;

/// Stores that fill one object follow each other. One function may also fill objects that lie side by side, with other work between them:
/// each has a flush of its own. The stores of a few lines, word by word, are about as many.
const MAX_EVENTS_BETWEEN: u64 = 32;
/// An object may have lines that are not stored to between others that are.
const MAX_LINES_BETWEEN: u64 = 4;

/// A lost store that no flush followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnflushedStore {
    pub(crate) line: LineId,
    pub(crate) seq: u64,
}

impl UnflushedStore {
    /// Whether both fill the same object, as far as their lines and their order tell.
    pub(crate) fn is_beside(self, other: Self) -> bool {
        self.line.file == other.line.file
            && self.line.index.abs_diff(other.line.index) <= MAX_LINES_BETWEEN
            && self.seq.abs_diff(other.seq) <= MAX_EVENTS_BETWEEN
    }
}

/// Such stores, each with the function that made it and the key of its finding.
#[derive(Debug)]
pub(crate) struct UnflushedStores<K>(Vec<(String, UnflushedStore, K)>);

impl<K> Default for UnflushedStores<K> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Clone> UnflushedStores<K> {
    pub(crate) fn add(&mut self, function: Option<&str>, store: UnflushedStore, key: K) {
        self.0.extend(function.map(|function| (function.to_owned(), store, key)));
    }

    /// The keys of stores that fill the same object: by the same function, to the same line or one near it, and soon before or after.
    pub(crate) fn beside(&self, function: Option<&str>, store: UnflushedStore) -> Vec<K> {
        let same = self.0.iter().filter(|(by, other, _)| function == Some(by.as_str()) && store.is_beside(*other));
        same.map(|(.., key)| key.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use pmvet_events::FileId;

    use super::*;

    #[test]
    fn lines_of_one_object_belong_together() {
        let store = |file, index, seq| UnflushedStore { line: LineId { file: FileId(file), index }, seq };
        let mut stores = UnflushedStores::default();
        stores.add(Some("create"), store(1, 4, 100), "a");
        assert_eq!(stores.beside(Some("create"), store(1, 5, 102)), ["a"]);
        assert!(stores.beside(Some("create"), store(1, 4 + MAX_LINES_BETWEEN + 1, 102)).is_empty(), "too far away");
        assert!(stores.beside(Some("create"), store(2, 5, 102)).is_empty(), "another file");
        assert!(stores.beside(Some("insert"), store(1, 5, 102)).is_empty(), "another function");
        assert!(
            stores.beside(Some("create"), store(1, 5, 100 + MAX_EVENTS_BETWEEN + 1)).is_empty(),
            "other work between them"
        );
        stores.add(None, store(1, 4, 100), "b");
        assert!(stores.beside(None, store(1, 4, 100)).is_empty(), "the functions may differ");
    }
}
