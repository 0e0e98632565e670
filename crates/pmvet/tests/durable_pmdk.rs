//! PMDK's maps as Debian ships them, with `check --durable`: none of them loses what it has acknowledged, and what `hashmap_atomic`
//! says about repairing its count is no content.

#![allow(clippy::unwrap_used, reason = "a test")]

use pmvet_fixtures::{CLEAN, TestPlace, both_cores, make, one_of_each, turn};

/// `mapcli`'s ctree dies of a second key, with or without pmvet.
const OPERATIONS: &[u8] = b"i 1\np\nr 1\np\ni 3\np\n";

/// The one that repairs something is always among those that are tried.
const MAPS: [&str; 8] = ["hashmap_atomic", "btree", "ctree", "hashmap_tx", "rbtree", "hashmap_rp", "rtree", "skiplist"];

#[test]
fn maps_keep_what_they_acknowledge() {
    let _turn = turn();
    let mapcli = make("targets/pmdk", "pmdk").join("mapcli");
    both_cores(&one_of_each(MAPS, |map| map.starts_with("hashmap")), |map| {
        let place = TestPlace::new();
        let pool = place.pool();
        let command = [mapcli.to_str().unwrap(), map, pool.to_str().unwrap(), "1"];
        let program = command.join(" ");
        let setup = format!("printf '' | {program}");
        // Keys are printed in one line, and the order of a hash table means nothing. Messages stay whole.
        let dump = format!("printf 'p\\n' | {program} | sed '/^[0-9 ]*$/s/ /\\n/g'");
        let options = ["-j1", "--durable", "--dump-sort", "--setup", &setup, "--dump", &dump];
        // Opening a pool takes long.
        let less = ["--visits", "1", "--reorder-states", "8", "--crash-recoveries", "0"];
        let check = place.check(&options, &command.map(str::to_owned)).option(&less).input(OPERATIONS);
        let checked = check.variable("PMEM_IS_PMEM_FORCE", "1").run();
        match checked.code == Some(CLEAN) && checked.errors().next().is_none() {
            true => Ok(()),
            false => Err(format!("--- {map}: {}", checked.text())),
        }
    });
}
