//! The logical content of PM, as the user's command shows it: a line for each thing that it holds.
//!
//! The first word of a line counts as the name of the thing, the others as its value; or the whole line is a name, if other lines start
//! alike. That only decides how a difference is described, not whether there is one.

use std::collections::{BTreeMap, BTreeSet};

use pmvet_findings::Violation;
use serde::{Deserialize, Serialize};

/// How many lines of a difference a finding shows.
const SHOWN: usize = 8;

/// Lines, without what differs from run to run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    lines: Vec<String>,
}

impl Content {
    /// A content for comparison: without what `mask` removes, and sorted if the order does not matter.
    pub fn new(text: &str, mask: &ContentMask, sort: bool) -> Self {
        let mut lines: Vec<String> = text.lines().filter_map(|line| mask.apply(line.trim_end())).collect();
        while lines.last().is_some_and(String::is_empty) {
            lines.pop();
        }
        if sort {
            lines.sort_unstable();
        }
        Self { lines }
    }

    pub(super) fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }

    /// The lines that do not occur in the other content.
    pub(super) fn lines_not_in(&self, other: &Self) -> BTreeSet<&str> {
        let there: BTreeSet<&str> = other.lines().collect();
        self.lines().filter(|line| !there.contains(line)).collect()
    }

    /// The lines that this content has and the other has not, or not as often.
    fn without(&self, other: &Self) -> Vec<&str> {
        let mut left = BTreeMap::<&str, usize>::new();
        other.lines.iter().for_each(|line| *left.entry(line).or_default() += 1);
        let mut new = Vec::new();
        for line in self.lines.iter().map(String::as_str) {
            match left.get_mut(line) {
                Some(times @ 1..) => *times -= 1,
                _ => new.push(line),
            }
        }
        new
    }

    /// How far apart two contents are: first by their names, then by the values.
    fn distance(&self, other: &Self, name: NameOf<'_>) -> (usize, usize) {
        let (one, two) = (self.names(name), other.names(name));
        let names: BTreeSet<&str> = one.keys().chain(two.keys()).copied().collect();
        let times = |names: &BTreeMap<&str, usize>, name| names.get(name).copied().unwrap_or(0);
        let apart = names.into_iter().map(|name| times(&one, name).abs_diff(times(&two, name))).sum();
        (apart, self.without(other).len() + other.without(self).len())
    }

    /// How often each name occurs.
    fn names(&self, name: NameOf<'_>) -> BTreeMap<&str, usize> {
        let mut names = BTreeMap::new();
        self.lines.iter().for_each(|line| *names.entry(name(line)).or_default() += 1);
        names
    }
}

/// What a line is about.
type NameOf<'a> = &'a dyn Fn(&str) -> &str;

fn first_word(line: &str) -> &str {
    line.split_whitespace().next().unwrap_or_default().trim_end_matches([':', '=', ','])
}

/// Whether an operation names something, or a part of it, such as `a` of `a.x`.
pub(super) fn names(operation: &str, name: &str) -> bool {
    let separates = |c: char| !c.is_alphanumeric() && c != '_' && c != '-';
    let is_part = |word: &str| !word.is_empty() && name.split(separates).any(|part| part == word);
    operation.split(separates).any(is_part)
}

/// An operation, with the contents before and after it.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// The line of input, or the request.
    pub operation: &'a str,
    /// The content without the operation.
    pub before: &'a Content,
    /// The content with it.
    pub after: &'a Content,
}

/// A difference from what was promised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentDifference {
    /// What kind of promise is broken.
    pub violation: Violation,
    /// The step that is half done, if one is.
    pub step: Option<usize>,
    /// What differs, by name.
    pub names: Vec<String>,
    /// Missing lines, with `-`, and lines that should not be there, with `+`.
    pub lines: Vec<String>,
}

/// What is wrong with a content that is none of `allowed`. `steps` may be half done. `done` are all operations that should, or may,
/// be there.
pub fn difference(steps: &[Step<'_>], allowed: &[&Content], done: &[&str], found: &Content) -> ContentDifference {
    let mut shared = BTreeSet::new();
    for content in allowed.iter().copied().chain(steps.iter().flat_map(|step| [step.before, step.after])) {
        shared.extend(content.names(&first_word).into_iter().filter(|(_, times)| *times > 1).map(|(word, _)| word));
    }
    let name: NameOf<'_> = &|line| if shared.contains(first_word(line)) { line } else { first_word(line) };
    let make = |violation, step, right: &Content| {
        let differing = right.without(found).into_iter().chain(found.without(right));
        let names = differing.map(|line| name(line).to_owned()).collect();
        ContentDifference { violation, step, names, lines: shown(right, found) }
    };
    for (i, step) in steps.iter().enumerate() {
        let may_be_missing = allowed.contains(&step.before);
        if let Some(violation) = half_done(*step, may_be_missing, found, name) {
            return make(violation, Some(i), step.after);
        }
    }
    let nothing = Content::default();
    let right = allowed.iter().copied().min_by_key(|content| content.distance(found, name)).unwrap_or(&nothing);
    let (missing, extra) = (right.without(found), found.without(right));
    let is_in = |lines: &[&str], wanted: &str| lines.iter().any(|line| name(line) == wanted);
    let (expected, there) = (right.names(name), found.names(name));
    let is_twice = |line: &&str| {
        let name = name(line);
        !is_in(&missing, name) && expected.get(name).is_some_and(|times| there.get(name) > Some(times))
    };
    let is_known = |line: &&str| done.iter().any(|operation| names(operation, name(line)));
    let violation = if extra.iter().any(is_twice) {
        Violation::Duplicated
    } else if missing.iter().any(|line| !is_in(&extra, name(line))) {
        Violation::Lost
    } else if extra.iter().filter(|line| !is_in(&missing, name(line))).any(is_known) {
        Violation::Resurrected
    } else {
        Violation::WrongValue
    };
    make(violation, None, right)
}

/// Whether a content lies between those before and after an operation. Unless the operation may be missing, what it names has to be
/// there.
fn half_done(
    Step { operation, before, after }: Step<'_>,
    may_be_missing: bool,
    found: &Content,
    name: NameOf<'_>,
) -> Option<Violation> {
    let (removed, added) = (before.without(after), after.without(before));
    let (gone, new) = (before.without(found), found.without(before));
    if found == before || found == after {
        return None;
    }
    let is_part = |part: &[&str], of: &[&str]| part.iter().all(|line| of.contains(line));
    if is_part(&gone, &removed) && is_part(&new, &added) {
        let changed: BTreeSet<&str> = removed.iter().chain(&added).map(|line| name(line)).collect();
        // What the operation changes besides what it names, such as a count, follows from that.
        let named: BTreeSet<&str> = changed.iter().copied().filter(|name| names(operation, name)).collect();
        let of = |lines: &[&str], wanted: &str| lines.iter().filter(|line| name(line) == wanted).count();
        let is_done = |name: &&str| of(&gone, name) == of(&removed, name) && of(&new, name) == of(&added, name);
        let is_undone = |name: &&str| of(&gone, name) == 0 && of(&new, name) == 0;
        let whole = |names: &BTreeSet<&str>| names.iter().all(is_done) || names.iter().all(is_undone);
        // A single thing is there or not, or there twice.
        let each = changed.iter().all(|name| is_done(name) || is_undone(name));
        return match (each, whole(&named)) {
            (true, false) => Some(Violation::Torn),
            (true, true) if changed.len() > 1 && (may_be_missing || named.iter().all(is_done)) => {
                Some(Violation::WrongValue)
            }
            _ => None,
        };
    }
    // A line that mixes words from before and after the operation.
    let mixed = |line: &&str| {
        let find = |lines: &[&str]| lines.iter().find(|other| name(other) == name(line)).map(|l| l.to_string());
        let (Some(old), Some(now)) = (find(&removed), find(&added)) else { return false };
        let (old, now): (Vec<&str>, Vec<&str>) = (old.split_whitespace().collect(), now.split_whitespace().collect());
        let words: Vec<&str> = line.split_whitespace().collect();
        words != old
            && words != now
            && words.len() == old.len()
            && words.len() == now.len()
            && words.iter().enumerate().all(|(i, word)| *word == old[i] || *word == now[i])
    };
    let [line] = new[..] else { return None };
    if !is_part(&gone, &removed) {
        return None;
    }
    mixed(&line).then(|| if names(operation, name(line)) { Violation::Torn } else { Violation::WrongValue })
}

pub(super) fn shown(expected: &Content, found: &Content) -> Vec<String> {
    let missing = expected.without(found).into_iter().map(|line| format!("- {line}"));
    let extra = found.without(expected).into_iter().map(|line| format!("+ {line}"));
    let mut lines: Vec<String> = missing.chain(extra).collect();
    if lines.is_empty() {
        lines.push("(the same lines in another order)".into());
    }
    if lines.len() > SHOWN {
        let more = lines.len() - SHOWN;
        lines.truncate(SHOWN);
        lines.push(format!("({more} more lines differ)"));
    }
    lines
}

/// What differs between two runs without a crash, and therefore means nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentMask {
    /// Lines of these words; `None` stands for any word.
    shapes: Vec<Vec<Option<String>>>,
    /// Lines that come and go.
    lines: BTreeSet<String>,
}

impl ContentMask {
    /// Learns from two contents that should be the same.
    pub fn learn(&mut self, first: &str, second: &str) {
        let plain = |text| Content::new(text, self, false);
        let (first, second) = (plain(first), plain(second));
        let (gone, new) = (first.without(&second), second.without(&first));
        let pairs = gone.len().max(new.len());
        let mut learned = Vec::new();
        for i in 0..pairs {
            match (gone.get(i), new.get(i)) {
                (Some(one), Some(other)) => match shape(one, other) {
                    Some(shape) => learned.push(Ok(shape)),
                    None => learned.extend([Err((*one).to_owned()), Err((*other).to_owned())]),
                },
                (one, other) => learned.extend(one.or(other).map(|line| Err((*line).to_owned()))),
            }
        }
        for part in learned {
            match part {
                Ok(shape) if !self.shapes.contains(&shape) => self.shapes.push(shape),
                Ok(_) => {}
                Err(line) => drop(self.lines.insert(line)),
            }
        }
    }

    /// A line for comparison; nothing if it is not compared.
    fn apply(&self, line: &str) -> Option<String> {
        if self.lines.contains(line) {
            return None;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let fits = |shape: &&Vec<Option<String>>| {
            shape.len() == words.len()
                && shape.iter().zip(&words).all(|(part, word)| part.as_ref().is_none_or(|p| p == word))
        };
        Some(self.shapes.iter().find(fits).map_or_else(|| line.to_owned(), |shape| in_words(shape)))
    }

    /// In words: what is not compared.
    pub fn masked(&self) -> Vec<String> {
        self.shapes.iter().map(|shape| in_words(shape)).chain(self.lines.iter().cloned()).collect()
    }
}

fn in_words(shape: &[Option<String>]) -> String {
    shape.iter().map(|part| part.as_deref().unwrap_or("*")).collect::<Vec<_>>().join(" ")
}

/// The words that two lines have in common, if there are any.
fn shape(one: &str, other: &str) -> Option<Vec<Option<String>>> {
    let (one, other): (Vec<&str>, Vec<&str>) = (one.split_whitespace().collect(), other.split_whitespace().collect());
    if one.len() != other.len() {
        return None;
    }
    let shape: Vec<Option<String>> = one.iter().zip(&other).map(|(a, b)| (a == b).then(|| (*a).to_owned())).collect();
    shape.iter().any(Option::is_some).then_some(shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(text: &str) -> Content {
        Content::new(&text.replace('|', "\n"), &ContentMask::default(), false)
    }

    /// One operation after the other; contents from number `allowed` on would be right.
    fn compared(chain: &[&str], operations: &[&str], allowed: usize, found: &str) -> ContentDifference {
        let chain: Vec<Content> = chain.iter().map(|text| content(text)).collect();
        let step = |(i, operation)| Step { operation, before: &chain[i], after: &chain[i + 1] };
        let steps: Vec<Step<'_>> =
            operations.iter().copied().enumerate().skip(allowed.saturating_sub(1)).map(step).collect();
        difference(&steps, &chain[allowed..].iter().collect::<Vec<_>>(), operations, &content(found))
    }

    fn judged(chain: &[&str], operations: &[&str], allowed: usize, found: &str) -> Violation {
        compared(chain, operations, allowed, found).violation
    }

    #[test]
    fn what_is_gone_is_lost() {
        assert_eq!(judged(&["", "1 a", "1 a|2 b"], &["put 1 a", "put 2 b"], 2, "1 a"), Violation::Lost);
        assert_eq!(judged(&["", "1 a", "1 a|2 b"], &["put 1 a", "put 2 b"], 2, "2 b"), Violation::Lost);
    }

    #[test]
    fn what_was_removed_is_back() {
        assert_eq!(judged(&["", "1 a", ""], &["put 1 a", "del 1"], 2, "1 a"), Violation::Resurrected);
        let list = ["post a|post b", "post b"];
        assert_eq!(judged(&list, &["drop a"], 1, "post a|post b"), Violation::Resurrected);
        let fields = ["", "1.x a|1.y b", ""];
        assert_eq!(judged(&fields, &["put 1 a b", "del 1"], 2, "1.x a|1.y b"), Violation::Resurrected);
    }

    /// The count alone is as it should be: it is not what is wrong.
    #[test]
    fn what_is_counted_and_not_there() {
        let put = ["count 1|k 1", "count 2|k 1|m 2"];
        assert_eq!(judged(&put, &["put m 2"], 1, "count 2|k 1"), Violation::Lost);
        assert_eq!(judged(&put, &["put m 2"], 0, "count 2|k 1"), Violation::WrongValue, "not acknowledged");
        let del = ["count 2|k 1|m 2", "count 1|k 1"];
        assert_eq!(judged(&del, &["del m"], 1, "count 1|k 1|m 2"), Violation::Resurrected);
        assert_eq!(judged(&del, &["del m"], 1, "count 2|k 1"), Violation::WrongValue, "done, and not counted");
    }

    #[test]
    fn what_is_there_twice() {
        assert_eq!(judged(&["", "1 a"], &["put 1 a"], 1, "1 a|1 a"), Violation::Duplicated);
        assert_eq!(judged(&["1 a", "1 b"], &["put 1 b"], 1, "1 a|1 b"), Violation::Duplicated);
        assert_eq!(judged(&["post a", "post a|post b"], &["post b"], 1, "post a|post a"), Violation::Duplicated);
    }

    #[test]
    fn what_is_half_done_is_torn() {
        let transfer = ["a 10|b 10", "a 5|b 15"];
        assert_eq!(judged(&transfer, &["move a b 5"], 0, "a 5|b 10"), Violation::Torn);
        assert_eq!(judged(&transfer, &["move a b 5"], 1, "a 10|b 15"), Violation::Torn);
        assert_eq!(judged(&transfer, &["move a b 5"], 1, "a 10|b 10"), Violation::WrongValue, "not done at all");
        let fields = ["k.x 1|k.y 2", "k.x 3|k.y 4"];
        assert_eq!(judged(&fields, &["set k 3 4"], 0, "k.x 3|k.y 2"), Violation::Torn);
        let other = ["k 1|m 2", "k 3|m 2"];
        assert_eq!(judged(&other, &["set k 3"], 1, "k 3"), Violation::Lost, "it is done, and something else is gone");
        assert_eq!(judged(&["k 1 2", "k 3 4"], &["set k 3 4"], 0, "k 3 2"), Violation::Torn);
    }

    #[test]
    fn values_that_do_not_fit_are_wrong() {
        assert_eq!(judged(&["k 1", "k 2"], &["set k 2"], 1, "k 1"), Violation::WrongValue);
        assert_eq!(judged(&["k 1", "k 2"], &["set k 2"], 1, "k 77"), Violation::WrongValue);
        assert_eq!(judged(&["", "k 1"], &["set k 1"], 0, "k 2"), Violation::WrongValue, "begun, and done wrongly");
        let counted = ["files: 1, counted: 1|k 1", "files: 2, counted: 2|k 1|m 2"];
        assert_eq!(judged(&counted, &["put m 2"], 0, "files: 2, counted: 1|k 1|m 2"), Violation::WrongValue);
        let counted = ["count 1|k 1", "count 2|k 1|m 2"];
        assert_eq!(judged(&counted, &["put m 2"], 0, "count 1|k 1|m 2"), Violation::WrongValue);
    }

    #[test]
    fn the_difference_is_shown_in_short() {
        assert_eq!(compared(&["1 a", "1 b"], &["put 1 b"], 1, "1 a").lines, ["- 1 b", "+ 1 a"]);
        let long: String = (0..30).map(|i| format!("{i} x|")).collect();
        let lines = compared(&[&long, &long], &["x"], 0, "").lines;
        assert_eq!(lines.len(), SHOWN + 1);
        assert_eq!(lines[SHOWN], "(22 more lines differ)");
    }

    #[test]
    fn what_differs_by_itself_is_masked() {
        let mut mask = ContentMask::default();
        mask.learn("uptime 3 s\n1 a\n", "uptime 5 s\n1 a\n");
        assert_eq!(mask.masked(), ["uptime * s"]);
        let with = |text: &str| Content::new(text, &mask, false);
        assert_eq!(with("uptime 9 s\n1 a"), with("uptime 1 s\n1 a"));
        assert_ne!(with("uptime 9 s\n1 b"), with("uptime 1 s\n1 a"));
        mask.learn("1 a\nx\n", "1 a\n");
        assert_eq!(Content::new("1 a\nx", &mask, false), Content::new("1 a", &mask, false));
    }

    #[test]
    fn order_matters_unless_it_is_said_not_to() {
        let sorted = |text: &str, sort| Content::new(text, &ContentMask::default(), sort);
        assert_eq!(sorted("b\na", true), sorted("a\nb", true));
        assert_ne!(sorted("b\na", false), sorted("a\nb", false));
    }
}
