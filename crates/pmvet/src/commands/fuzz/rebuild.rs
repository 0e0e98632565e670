//! `--rebuild`: makes test cases of a corpus again, starting from the first image.

use std::collections::HashMap;
use std::sync::Arc;

use pmvet_engines::fuzz::campaign::FuzzError;
use pmvet_engines::fuzz::content::{ImageId, PmContent};
use pmvet_engines::fuzz::runner::{CaseOrder, Runner};
use xxhash_rust::xxh3::xxh3_64;

use super::start::FuzzStart;
use crate::exit::{Error, Exit};

/// Makes some cases again and runs each twice. Exit code 1 if any image or any count differs.
pub(super) fn run(start: &mut FuzzStart, count: usize, seed: u64) -> Result<Exit, Error> {
    let mut cases = start.known.clone();
    // In an order that looks random but is always the same.
    cases.sort_by_key(|case| xxh3_64(&[&case.image.0.to_le_bytes()[..], &case.input, &seed.to_le_bytes()].concat()));
    cases.truncate(count);
    if cases.is_empty() {
        eprintln!("pmvet: nothing was rebuilt: there are no test cases in {}", start.corpus.display());
        return Ok(Exit::NothingAnalysed);
    }
    let runner = Runner::new(start.target.clone()).map_err(FuzzError::from)?;
    let mut rebuilt = Rebuilt { runner, start, contents: HashMap::new() };
    let (mut images, mut counts) = (0, 0);
    for case in &cases {
        let content = rebuilt.content(case.image)?;
        if content.id() != case.image {
            images += 1;
            continue;
        }
        let order = CaseOrder {
            image: case.image,
            content: &content,
            input: &case.input,
            stop: (0, 0),
            keep: true,
            once: false,
            hurried: false,
        };
        let outcomes = [rebuilt.runner.run(&order, None), rebuilt.runner.run(&order, None)];
        let [first, second] = outcomes.map(|o| o.map(|o| (o.counts, o.content)).map_err(FuzzError::from));
        counts += usize::from(first? != second?);
    }
    println!(
        "{} test cases made again from the start: {images} with another image, {counts} with other counts",
        cases.len()
    );
    Ok(if images + counts == 0 { Exit::Ok } else { Exit::Findings })
}

struct Rebuilt<'a> {
    runner: Runner,
    start: &'a mut FuzzStart,
    /// The images made again so far.
    contents: HashMap<ImageId, Arc<PmContent>>,
}

impl Rebuilt<'_> {
    /// Makes an image by running everything that led to it.
    fn content(&mut self, image: ImageId) -> Result<Arc<PmContent>, FuzzError> {
        let mut line = Vec::new();
        let mut at = image;
        let mut content = loop {
            if let Some(content) = self.contents.get(&at) {
                break Arc::clone(content);
            }
            match self.start.store.origin(at).cloned() {
                Some(origin) => match origin.parent {
                    Some(parent) => {
                        line.push((at, origin));
                        at = parent;
                    }
                    None => break self.start.store.get(at).map_err(FuzzError::Corpus)?,
                },
                None => return Err(FuzzError::Corpus(std::io::ErrorKind::NotFound.into())),
            }
        };
        for (id, origin) in line.into_iter().rev() {
            let order = CaseOrder {
                image: origin.parent.unwrap_or(id),
                content: &content,
                input: &origin.input,
                stop: origin.stop,
                keep: true,
                once: true,
                hurried: false,
            };
            let outcome = self.runner.run(&order, None)?;
            content = Arc::new(outcome.content.unwrap_or_default());
            self.contents.insert(id, Arc::clone(&content));
        }
        Ok(content)
    }
}
