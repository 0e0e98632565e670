//! Objects that were never flushed: one flush is missing, however many lines the object has.

use pmvet_model::LineId;

/// Lost stores that no flush followed, each with the key of its finding.
#[derive(Debug)]
pub(crate) struct UnflushedStores<K>(Vec<(String, LineId, K)>);

impl<K> Default for UnflushedStores<K> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Clone> UnflushedStores<K> {
    /// Adds a store of a function.
    pub(crate) fn add(&mut self, function: Option<&str>, line: LineId, key: K) {
        self.0.extend(function.map(|function| (function.to_owned(), line, key)));
    }

    /// The keys of stores by the same function to the same line or one next to it.
    pub(crate) fn beside(&self, function: Option<&str>, line: LineId) -> Vec<K> {
        let is_beside = |other: &LineId| other.file == line.file && other.index.abs_diff(line.index) <= 1;
        let same = self.0.iter().filter(|(by, other, _)| function == Some(by.as_str()) && is_beside(other));
        same.map(|(.., key)| key.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use pmvet_events::FileId;

    use super::*;

    #[test]
    fn lines_of_one_object_belong_together() {
        let line = |file, index| LineId { file: FileId(file), index };
        let mut stores = UnflushedStores::default();
        stores.add(Some("create"), line(1, 4), "a");
        assert_eq!(stores.beside(Some("create"), line(1, 5)), ["a"]);
        assert!(stores.beside(Some("create"), line(1, 6)).is_empty(), "too far away");
        assert!(stores.beside(Some("create"), line(2, 5)).is_empty(), "another file");
        assert!(stores.beside(Some("insert"), line(1, 5)).is_empty(), "another function");
        stores.add(None, line(1, 4), "b");
        assert!(stores.beside(None, line(1, 4)).is_empty(), "the functions may differ");
    }
}
