//! What to ask a recovered program that has no dump: the read-only operations of its input.
//!
//! As Witcher does. The first word of a line is its verb. A verb is read-only if none of its operations has changed PM. Its operations
//! are asked again after recovery, also about what other operations name: `get 3`, if the input has `get 1` and `put 3 x`. It does not
//! matter whether the verb really only reads, since the contents to compare with come from the same questions.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use crate::lab::{Lab, LabError};

use super::{Indistinct, OperationSigns, Sign, begun_by, line_ends};

/// Upper bound of questions: each recovery answers all of them.
const MOST_QUESTIONS: usize = 1000;

/// Lines that a program answers and that change nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Questions {
    /// The questions, in the order in which they are asked.
    pub lines: Vec<String>,
    /// Their verbs.
    pub verbs: Vec<String>,
    /// How many more questions there are.
    pub left: usize,
}

impl Questions {
    /// Finds the questions among the operations of a run. None: all operations change something.
    pub fn find(signs: &OperationSigns, lines: &[String]) -> Result<Self, Indistinct> {
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        Ok(Self::about(&lines, &signs.changing(&lines)?))
    }

    /// The same, of the recorded run of a lab.
    pub fn of_run(lab: Lab<'_>, lines: &[String]) -> Result<Result<Self, Indistinct>, LabError> {
        let recording = lab.recording();
        let failed = |source| LabError::Trace { path: recording.trace(), source };
        let mut signs = OperationSigns::default();
        let mut reader = recording.read().map_err(failed)?;
        while let Some(event) = reader.next().map_err(failed)? {
            signs.event(&event);
        }
        Ok(Self::find(&signs, lines))
    }

    fn about(lines: &[&str], changing: &BTreeSet<usize>) -> Self {
        let verb = |line: &&str| line.split_whitespace().next().map(str::to_owned);
        let changes: BTreeSet<String> = changing.iter().filter_map(|&i| verb(&lines[i])).collect();
        let looks = |line: &&str| verb(line).filter(|verb| !changes.contains(verb));
        // All questions of a verb come where its last one was: what comes after `quit` is not read.
        let mut last = BTreeMap::new();
        let mut own: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for (i, line) in lines.iter().enumerate() {
            if let Some(verb) = looks(line) {
                last.insert(verb.clone(), i);
                own.entry(verb).or_default().push(line.trim_end());
            }
        }
        let mut verbs: Vec<String> = last.keys().cloned().collect();
        verbs.sort_by_key(|verb| last[verb]);
        let names: Vec<&str> = lines.iter().filter_map(|line| line.split_whitespace().nth(1)).collect();
        let (mut asked, mut known) = (Vec::new(), BTreeSet::new());
        for verb in &verbs {
            let own = own.remove(verb).unwrap_or_default();
            let names_one = own.iter().all(|line| line.split_whitespace().count() == 2);
            let about = names.iter().filter(|_| names_one).map(|name| format!("{verb} {name}"));
            asked.extend(own.into_iter().map(str::to_owned).chain(about).filter(|line| known.insert(line.clone())));
        }
        let left = asked.len().saturating_sub(MOST_QUESTIONS);
        asked.truncate(MOST_QUESTIONS);
        Self { lines: asked, verbs, left }
    }

    /// The answers to these questions, a line each, without those that are the same before any operation (`at_first`).
    /// Unchanged if there is not one line for each question.
    pub(super) fn answers<'a>(asked: &[String], at_first: Option<&str>, text: &'a str) -> Cow<'a, str> {
        if asked.is_empty() || text.lines().count() != asked.len() {
            return text.into();
        }
        let at_first: Vec<&str> = at_first.map(|text| text.lines().collect()).unwrap_or_default();
        let is_new = |(i, (_, answer)): &(usize, (&String, &str))| at_first.get(*i) != Some(answer);
        let told = asked.iter().zip(text.lines()).enumerate().filter(is_new);
        told.map(|(_, (question, answer))| format!("{}: {answer}\n", as_one_word(question))).collect()
    }
}

/// Writes `get 1` as `get(1)`, to name an answer.
fn as_one_word(question: &str) -> String {
    match question.split_once(char::is_whitespace) {
        Some((verb, rest)) => format!("{verb}({})", rest.split_whitespace().collect::<Vec<_>>().join(",")),
        None => question.into(),
    }
}

impl OperationSigns {
    /// The positions of operations that have, or may have, changed PM.
    fn changing(&self, lines: &[&str]) -> Result<BTreeSet<usize>, Indistinct> {
        let (promises, _) = self.promises(lines)?;
        let mut changing = BTreeSet::new();
        if self.signs.iter().any(|(.., sign)| matches!(sign, Sign::Begin { .. })) {
            let operations: BTreeMap<u64, usize> = promises.spans().iter().map(|span| span.ended).zip(0..).collect();
            let ends = self.signs.iter().filter(|(.., sign)| matches!(sign, Sign::End { changed: false }));
            let looking: BTreeSet<usize> = ends.filter_map(|(seq, ..)| operations.get(seq).copied()).collect();
            changing.extend((0..lines.len()).filter(|i| !looking.contains(i)));
            return Ok(changing);
        }
        let ends = line_ends(lines);
        let (mut bytes, mut begun) = (0, 0..0);
        for (.., sign) in &self.signs {
            if let Sign::Read { len, after_change, .. } = sign {
                changing.extend(begun.clone().filter(|_| *after_change));
                bytes += len;
                begun = begun.end..(begun_by(&ends, bytes) as usize).max(begun.end);
            }
        }
        // If the end of the input was not read, operations after the last read may have changed PM.
        changing.extend(begun);
        Ok(changing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn questions(lines: &[&str], changing: &[usize]) -> (Vec<String>, Vec<String>) {
        let Questions { lines, verbs, .. } = Questions::about(lines, &changing.iter().copied().collect());
        (lines, verbs)
    }

    #[test]
    fn what_looks_is_asked_about_everything() {
        let lines = ["put 1 a", "get 1", "put 2 b", "del 3", "count", "quit"];
        let (asked, verbs) = questions(&lines, &[0, 2, 3]);
        assert_eq!(asked, ["get 1", "get 2", "get 3", "count", "quit"]);
        assert_eq!(verbs, ["get", "count", "quit"]);
    }

    #[test]
    fn a_verb_that_changes_something_once_does_not_look() {
        assert_eq!(questions(&["put 1 a", "put 1 a"], &[0]), (vec![], vec![]));
        assert_eq!(questions(&["5", "5", "7"], &[0, 2]), (vec![], vec![]));
    }

    #[test]
    fn what_has_more_than_one_argument_is_asked_as_it_was() {
        assert_eq!(questions(&["put 9 a", "range 1 4"], &[0]).0, ["range 1 4"]);
    }

    #[test]
    fn questions_beyond_the_most_are_counted() {
        let lines: Vec<String> = (0..1500).map(|key| format!("put {key} x")).chain(["get 0".into()]).collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let questions = Questions::about(&lines, &(0..1500).collect());
        assert_eq!((questions.lines.len(), questions.left), (MOST_QUESTIONS, 500));
    }

    #[test]
    fn answers_are_told_as_long_as_there_is_one_for_each() {
        let asked = ["get 1", "get 2", "count"].map(String::from);
        let answers = |text| Questions::answers(&asked, Some("none\nnone\n0\n"), text).into_owned();
        assert_eq!(answers("a\nnone\n1\n"), "get(1): a\ncount: 1\n");
        assert_eq!(answers("welcome\na\nnone\n1\n"), "welcome\na\nnone\n1\n");
    }
}
