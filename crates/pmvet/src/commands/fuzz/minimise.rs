//! `--cmin` and `--tmin`: fewer test cases with the same coverage, and a smaller test case with the same effect.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use pmvet_engines::fuzz::campaign::FuzzError;
use pmvet_engines::fuzz::case::{Case, file_name, parse_file_name};
use pmvet_engines::fuzz::paths::{Favour, class};
use pmvet_engines::fuzz::runner::{CaseOrder, CaseOutcome, Runner};
use pmvet_engines::fuzz::store::ImageStore;
use pmvet_target::forkserver::ForkedEnd;
use pmvet_target::launch::stopped_by;

use super::start::FuzzStart;
use crate::exit::{Error, Exit};
use crate::files;

/// What a run covers: counters, with the class of each count.
type CoveredCounts = HashSet<(u32, u8)>;

fn run(runner: &mut Runner, start: &mut FuzzStart, case: &Case, once: bool) -> Result<CaseOutcome, FuzzError> {
    let content = start.store.get(case.image).map_err(FuzzError::Corpus)?;
    let order = CaseOrder {
        image: case.image,
        content: &content,
        input: &case.input,
        stop: (0, 0),
        keep: false,
        once,
        hurried: false,
    };
    Ok(runner.run(&order, None)?)
}

fn covered(outcome: &CaseOutcome) -> CoveredCounts {
    let counted = outcome.counts.iter().enumerate().filter(|&(_, &count)| count != 0);
    counted.map(|(i, &count)| (i as u32, class(count))).collect()
}

/// Copies to another folder a small set of test cases with the coverage of the whole corpus, preferring small inputs, as `afl-cmin` does.
pub(super) fn corpus(start: &mut FuzzStart, to: &Path) -> Result<Exit, Error> {
    let failed = |source| Error::Output { action: "write", what: to.display().to_string(), source };
    if start.known.is_empty() {
        eprintln!("pmvet: nothing was done: there are no test cases in {}", start.corpus.display());
        return Ok(Exit::NothingAnalysed);
    }
    if to.join("images.jsonl").exists() {
        return Err(Error::Usage(format!("--cmin: {} has a corpus already", to.display())));
    }
    std::fs::create_dir_all(to.join("queue")).map_err(failed)?;
    let mut cases = start.known.clone();
    cases.sort_by_key(|case| case.input.len());
    let mut runner = Runner::new(start.target.clone()).map_err(FuzzError::from)?;
    let mut covers = Vec::new();
    for case in &cases {
        covers.push(covered(&run(&mut runner, start, case, true)?));
        if stopped_by().is_some() {
            return Ok(Exit::Interrupted);
        }
    }
    let kept = fewest(&covers);
    let mut store = ImageStore::open(to).map_err(failed)?;
    if let Some(root) = start.store.root() {
        store.adopt(&mut start.store, root).map_err(failed)?;
    }
    for (number, &i) in kept.iter().enumerate() {
        store.adopt(&mut start.store, cases[i].image).map_err(failed)?;
        let name = file_name(number, &cases[i], Favour::Path);
        files::replace(&to.join("queue").join(name), |out| out.write_all(&cases[i].input)).map_err(failed)?;
    }
    println!("{} of {} test cases cover the same: {}", kept.len(), cases.len(), to.display());
    Ok(Exit::Ok)
}

/// Chooses which of these to keep so that together they cover all that any covers; items that fewest cases cover come first. `covers` is in
/// the order of preference.
fn fewest(covers: &[CoveredCounts]) -> Vec<usize> {
    let mut by_item: HashMap<(u32, u8), (usize, usize)> = HashMap::new();
    for (i, cover) in covers.iter().enumerate() {
        for &item in cover {
            by_item.entry(item).or_insert((0, i)).0 += 1;
        }
    }
    let mut items: Vec<_> = by_item.into_iter().map(|(item, (times, first))| (times, first, item)).collect();
    items.sort_unstable();
    let (mut done, mut kept) = (CoveredCounts::new(), Vec::new());
    for (_, first, item) in items {
        if !done.contains(&item) {
            done.extend(&covers[first]);
            kept.push(first);
        }
    }
    kept.sort_unstable();
    kept
}

/// Makes the input of a test case smaller as long as the program fails in the same way or, if it does not fail, takes the same
/// PM paths. The result is written beside the original.
pub(super) fn case(start: &mut FuzzStart, file: &Path) -> Result<Exit, Error> {
    let unusable = |e: &dyn std::fmt::Display| Error::Usage(format!("--tmin: {}: {e}", file.display()));
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let (number, image) = parse_file_name(name).ok_or_else(|| unusable(&"not a test case of a corpus"))?;
    let input = std::fs::read(file).map_err(|e| unusable(&e))?;
    if !start.store.contains(image) {
        return Err(unusable(&"the corpus does not have its image"));
    }
    let mut runner = Runner::new(start.target.clone()).map_err(FuzzError::from)?;
    let mut essence = |input: &[u8]| -> Result<(Option<ForkedEnd>, CoveredCounts), FuzzError> {
        let outcome = run(&mut runner, start, &Case { image, input: input.to_vec() }, false)?;
        let ended = matches!(outcome.end, ForkedEnd::Exit(pmvet_target::launch::TargetExit::Status(_)));
        let paths = covered(&outcome).into_iter().filter(|&(i, _)| (i as usize) < pmvet_events::stage::MAP);
        Ok(if ended { (None, paths.map(|(i, _)| (i, 0)).collect()) } else { (Some(outcome.end), CoveredCounts::new()) })
    };
    let wanted = essence(&input)?;
    let before = input.len();
    let small = smaller(input, &mut |input| Ok::<_, FuzzError>(stopped_by().is_none() && essence(input)? == wanted))?;
    if stopped_by().is_some() {
        return Ok(Exit::Interrupted);
    }
    let case = Case { image, input: small };
    let folder = start.corpus.join("smaller");
    let to = folder.join(file_name(number, &case, Favour::None));
    std::fs::create_dir_all(&folder)
        .and_then(|()| files::replace(&to, |out| out.write_all(&case.input)))
        .map_err(|source| Error::Output { action: "write", what: to.display().to_string(), source })?;
    println!("{before} bytes, now {}: {}", case.input.len(), to.display());
    Ok(Exit::Ok)
}

/// Leaves out pieces, halves first and single bytes last, as long as `same` holds for the rest.
fn smaller<E>(mut input: Vec<u8>, same: &mut dyn FnMut(&[u8]) -> Result<bool, E>) -> Result<Vec<u8>, E> {
    let mut piece = input.len().next_power_of_two() / 2;
    while piece > 0 {
        let mut at = 0;
        while at < input.len() {
            let end = (at + piece).min(input.len());
            let without = [&input[..at], &input[end..]].concat();
            if same(&without)? {
                input = without;
            } else {
                at = end;
            }
        }
        piece /= 2;
    }
    Ok(input)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn the_rarest_is_seen_to_first() {
        let cover = |items: &[u32]| items.iter().map(|&i| (i, 1)).collect::<CoveredCounts>();
        assert_eq!(fewest(&[cover(&[1]), cover(&[2]), cover(&[1, 2, 3])]), [2]);
        assert_eq!(fewest(&[cover(&[1, 2]), cover(&[2, 3]), cover(&[3, 4])]), [0, 2]);
        assert!(fewest(&[]).is_empty());
    }

    #[test]
    fn what_does_not_matter_is_left_out() {
        let mut same = |input: &[u8]| Ok::<_, Infallible>(input.contains(&b'x') && input.contains(&b'y'));
        assert_eq!(smaller(b"a lot x of text y around".to_vec(), &mut same), Ok(b"xy".to_vec()));
        assert_eq!(smaller(Vec::new(), &mut |_| Ok::<_, Infallible>(true)), Ok(Vec::new()));
    }
}
