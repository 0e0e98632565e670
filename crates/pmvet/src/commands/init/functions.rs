//! Functions of a program whose names look like locks or allocators. pmvet knows those of the usual libraries; the user has to declare a
//! program's own.

use std::collections::BTreeSet;
use std::path::Path;

use object::{Object, ObjectSymbol, SymbolKind};

/// Most candidates to propose of each kind; more would be noise.
const MOST: usize = 12;

/// Candidates for the configuration, by name only.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Candidates {
    /// Function, and `acquire`, `try` or `release`.
    pub(super) locks: Vec<(String, &'static str)>,
    pub(super) allocators: Vec<String>,
}

/// Looks through the symbols of an executable. One without symbols has no candidates.
pub(super) fn candidates_in(executable: &Path) -> Candidates {
    let bytes = std::fs::read(executable).unwrap_or_default();
    let Ok(file) = object::File::parse(&*bytes) else { return Candidates::default() };
    let own = file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition());
    named(own.filter_map(|symbol| symbol.name().ok()))
}

fn named<'a>(functions: impl Iterator<Item = &'a str>) -> Candidates {
    let functions: BTreeSet<&str> = functions.filter(|name| !is_mangled(name)).collect();
    let mut found = Candidates::default();
    for name in functions {
        let lower = name.to_lowercase();
        let has = |words: &[&str]| lower.split('_').any(|word| words.contains(&word));
        if has(&["trylock"]) || (has(&["try"]) && has(&["lock", "acquire"])) {
            found.locks.push((name.into(), "try"));
        } else if has(&["unlock", "release"]) {
            found.locks.push((name.into(), "release"));
        } else if has(&["lock", "acquire"]) {
            found.locks.push((name.into(), "acquire"));
        } else if has(&["alloc", "malloc", "zalloc", "palloc", "allocate"]) {
            found.allocators.push(name.into());
        }
    }
    // A lock that no function releases is not a lock.
    let kinds = |wanted: &[&str]| found.locks.iter().any(|(_, kind)| wanted.contains(kind));
    if !kinds(&["acquire", "try"]) || !kinds(&["release"]) {
        found.locks.clear();
    }
    found.locks.truncate(MOST);
    found.allocators.truncate(MOST);
    found
}

/// C++ and Rust names say which type they belong to, not what an entry would be written like.
fn is_mangled(name: &str) -> bool {
    name.starts_with('_') || name.contains(['.', '$', '@'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_word_by_word() {
        let names = [
            "bucket_lock",
            "bucket_unlock",
            "try_lock",
            "block_read",
            "slab_alloc",
            "main",
            "_ZN4lockEv",
            "lock.part.0",
        ];
        let found = named(names.into_iter());
        let lock = |name: &str, kind| (name.to_owned(), kind);
        assert_eq!(
            found.locks,
            [lock("bucket_lock", "acquire"), lock("bucket_unlock", "release"), lock("try_lock", "try")]
        );
        assert_eq!(found.allocators, ["slab_alloc"]);
        assert_eq!(named(["lock_file"].into_iter()), Candidates::default(), "nothing unlocks");
    }

    #[test]
    fn what_is_no_program_has_no_functions() {
        assert_eq!(candidates_in(Path::new("/dev/null")), Candidates::default());
        assert_eq!(candidates_in(Path::new("/no/such/program")), Candidates::default());
    }
}
