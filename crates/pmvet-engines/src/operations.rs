//! Inputs made of operations, a line each, and the mutations of PMRace's section 4.5: mutate a parameter, add, delete,
//! shuffle, merge; prefer keys near existing ones; populate with many different ones.
//!
//! The operations come from the user's `ops.toml`, or else from the lines of the seeds, whose numbers become parameters.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

/// `ops.toml`.
///
/// # Mutating an input
///
/// ```
/// use pmvet_engines::operations::Operations;
///
/// let operations = Operations::parse(
///     r#"
///     operations = ["put {key} {value}", "get {key}"]
///     [parameters]
///     key = { max = 9 }
///     value = { values = ["a", "b"] }
///     "#,
/// )?;
/// let mut input = b"put 1 a\n".to_vec();
/// // Real campaigns draw at random; here it is always the last choice: add the last operation with the greatest key.
/// assert!(operations.mutate(&mut input, b"", &mut |choices| choices - 1));
/// assert_eq!(input, b"put 1 a\nget 9\nget 9\nget 9\nget 9\n");
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operations {
    /// Lines with `{name}` where a parameter goes.
    pub operations: Vec<String>,
    /// The operation that fills a store; without it, any that has a parameter.
    pub populate: Option<String>,
    /// What each `{name}` may stand for.
    #[serde(default)]
    pub parameters: BTreeMap<String, Parameter>,
}

/// The values of a parameter: numbers of a range, or words of a list.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameter {
    /// The smallest number, 0 unless the file says otherwise.
    #[serde(default)]
    pub min: i64,
    /// The largest number, inclusive; 100 unless the file says otherwise.
    #[serde(default = "Parameter::default_max")]
    pub max: i64,
    /// Words to use instead of numbers.
    #[serde(default)]
    pub values: Vec<String>,
    /// The range is a guess, so numbers of any size are tried occasionally.
    #[serde(skip)]
    wide: bool,
}

impl Parameter {
    fn default_max() -> i64 {
        100
    }
}

impl Default for Parameter {
    fn default() -> Self {
        Self { min: 0, max: Self::default_max(), values: Vec::new(), wide: false }
    }
}

/// Gives a random number below its argument, which is not 0.
pub type Chance<'a> = &'a mut dyn FnMut(usize) -> usize;

impl Operations {
    /// Reads `ops.toml`. The error says what is wrong in it: bad TOML, no operation, a parameter that is not listed, an empty range.
    pub fn parse(text: &str) -> Result<Self, String> {
        let this: Self = toml::from_str(text).map_err(|e| e.to_string())?;
        if this.operations.is_empty() {
            return Err("there is no operation in it".into());
        }
        for name in this.operations.iter().chain(&this.populate).flat_map(|line| names(line)) {
            let parameter = this.parameters.get(name).ok_or(format!("`{name}` is used, but not in [parameters]"))?;
            if parameter.values.is_empty() && parameter.min > parameter.max {
                return Err(format!("`{name}`: its least value is above its greatest"));
            }
        }
        Ok(this)
    }

    /// Derives operations from seeds that are text. Nothing if the seeds are not text, have no lines, or too many
    /// different ones.
    pub fn of_seeds<'a>(seeds: impl IntoIterator<Item = &'a [u8]>) -> Option<Self> {
        const MOST: usize = 64;
        let mut lines = BTreeSet::new();
        let mut max = Self::fallback_max();
        for seed in seeds {
            for line in std::str::from_utf8(seed).ok()?.lines().filter(|line| !line.trim().is_empty()) {
                let words = line.split(' ').map(|word| match word.parse::<i64>() {
                    Ok(number) => {
                        max = max.max(number.saturating_mul(2));
                        "{n}"
                    }
                    Err(_) => word,
                });
                lines.insert(words.collect::<Vec<_>>().join(" "));
            }
        }
        let parameters = [("n".to_owned(), Parameter { max, wide: true, ..Parameter::default() })].into();
        (!lines.is_empty() && lines.len() <= MOST).then(|| Self {
            operations: lines.into_iter().collect(),
            populate: None,
            parameters,
        })
    }

    /// The operations come from seeds, so there may be others.
    pub(super) fn are_guessed(&self) -> bool {
        self.parameters.values().any(|parameter| parameter.wide)
    }

    fn fallback_max() -> i64 {
        Parameter::default_max()
    }

    /// Changes an input, with the help of another one. Returns whether it did.
    pub fn mutate(&self, input: &mut Vec<u8>, other: &[u8], below: Chance<'_>) -> bool {
        let Ok(text) = std::str::from_utf8(input) else { return false };
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let rounds = 1 + below(4);
        for _ in 0..rounds {
            self.step(&mut lines, other, below);
        }
        let mut changed = lines.join("\n").into_bytes();
        if !changed.is_empty() {
            changed.push(b'\n');
        }
        let different = changed != *input;
        *input = changed;
        different
    }

    fn step(&self, lines: &mut Vec<String>, other: &[u8], below: Chance<'_>) {
        let keys = numbers(lines);
        match below(16) {
            0..=3 if !lines.is_empty() => {
                let at = below(lines.len());
                lines[at] = self.change(&lines[at], &keys, below);
            }
            4..=5 if lines.len() > 1 => {
                let at = below(lines.len());
                lines.remove(at);
            }
            6 => {
                for i in (1..lines.len()).rev() {
                    lines.swap(i, below(i + 1));
                }
            }
            7..=8 => {
                let other: Vec<&str> = std::str::from_utf8(other).unwrap_or_default().lines().collect();
                let from = below(other.len() + 1);
                let count = below(other.len() - from + 1);
                let at = below(lines.len() + 1);
                lines.splice(at..at, other[from..from + count].iter().map(|&line| line.to_owned()));
            }
            9 => {
                let fills: Vec<&String> = match &self.populate {
                    Some(populate) => vec![populate],
                    None => self.operations.iter().filter(|line| next_name(line).is_some()).collect(),
                };
                if fills.is_empty() {
                    return;
                }
                let populate = fills[below(fills.len())];
                let at = below(lines.len() + 1);
                let new: Vec<String> = (0..many(below)).map(|_| self.render(populate, &[], below)).collect();
                lines.splice(at..at, new);
            }
            10 => {
                let new = self.workload(below);
                let at = below(lines.len() + 1);
                lines.splice(at..at, new);
            }
            _ => {
                let template = &self.operations[below(self.operations.len())];
                let at = below(lines.len() + 1);
                lines.insert(at, self.render(template, &keys, below));
            }
        }
    }

    /// Many operations of a few kinds on a set of keys. Some states need a history that small changes of an input do not lead to, such
    /// as a table that grows, or nodes that become empty in the order in which they were filled.
    fn workload(&self, below: Chance<'_>) -> Vec<String> {
        let kinds: Vec<&String> = (0..1 + below(4)).map(|_| &self.operations[below(self.operations.len())]).collect();
        let range = self.number_range();
        let count = many(below);
        let keys: Vec<i64> =
            (0..1 + below(count)).filter_map(|_| self.value(&range, &[], below).parse().ok()).collect();
        (0..count).map(|_| self.render(kinds[below(kinds.len())], &keys, below)).collect()
    }

    /// The range for a number in a line: that of the first numeric parameter.
    fn number_range(&self) -> Parameter {
        self.parameters.values().find(|p| p.values.is_empty()).cloned().unwrap_or_default()
    }

    fn value(&self, parameter: &Parameter, keys: &[i64], below: Chance<'_>) -> String {
        if !parameter.values.is_empty() {
            return parameter.values[below(parameter.values.len())].clone();
        }
        if parameter.wide && below(16) == 0 {
            return (1i64 << below(63)).saturating_add(below(256) as i64).to_string();
        }
        let span = parameter.max.saturating_sub(parameter.min).saturating_add(1).max(1);
        let number = match keys {
            // An existing key, or its neighbour.
            [_, ..] if below(2) == 0 => keys[below(keys.len())].saturating_add(below(3) as i64 - 1),
            _ => parameter.min.saturating_add(below(usize::try_from(span).unwrap_or(usize::MAX)) as i64),
        };
        let max = if parameter.wide { i64::MAX } else { parameter.max };
        number.clamp(parameter.min, max).to_string()
    }

    /// Fills in a template's parameters.
    fn render(&self, template: &str, keys: &[i64], below: Chance<'_>) -> String {
        let mut line = String::new();
        let mut rest = template;
        while let Some((before, name, after)) = next_name(rest) {
            line.push_str(before);
            let parameter = self.parameters.get(name).cloned().unwrap_or_default();
            line.push_str(&self.value(&parameter, keys, below));
            rest = after;
        }
        line.push_str(rest);
        line
    }

    /// Changes a number in a line, or replaces a line that has none.
    fn change(&self, line: &str, keys: &[i64], below: Chance<'_>) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        // If operations are single letters, there are usually more of them.
        if self.are_guessed() && words[0].len() == 1 && below(8) == 0 {
            let letter = char::from(b'a' + below(26) as u8).to_string();
            return std::iter::once(letter.as_str()).chain(words[1..].iter().copied()).collect::<Vec<_>>().join(" ");
        }
        let places: Vec<usize> = (0..words.len()).filter(|&i| words[i].parse::<i64>().is_ok()).collect();
        if places.is_empty() {
            return self.render(&self.operations[below(self.operations.len())], keys, below);
        }
        let place = places[below(places.len())];
        let number = self.value(&self.number_range(), keys, below);
        let words: Vec<&str> =
            words.iter().enumerate().map(|(i, word)| if i == place { &number } else { *word }).collect();
        words.join(" ")
    }
}

/// A count from 4 to 511, each power of two as often as the others: few operations run fast, but some states need hundreds.
fn many(below: Chance<'_>) -> usize {
    let least = 4 << below(7);
    least + below(least)
}

/// The numbers in some lines.
fn numbers(lines: &[String]) -> Vec<i64> {
    lines.iter().flat_map(|line| line.split(' ')).filter_map(|word| word.parse().ok()).collect()
}

/// What is before the next parameter of a template, its name, and what is after it.
fn next_name(template: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = template.split_once('{')?;
    let (name, after) = rest.split_once('}')?;
    Some((before, name, after))
}

fn names(template: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut rest = template;
    while let Some((_, name, after)) = next_name(rest) {
        names.push(name);
        rest = after;
    }
    names
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A generator of small numbers.
    pub(crate) fn chance(mut state: u64) -> impl FnMut(usize) -> usize {
        move |below| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        }
    }

    const OPS: &str = "operations = ['i {key}', 'r {key}', 'p']\npopulate = 'i {key}'\n\
                       [parameters]\nkey = { min = 5, max = 9 }\n";

    #[test]
    fn mutants_are_made_of_operations() {
        let ops = Operations::parse(OPS).unwrap();
        let valid = |line: &str| match line.split_once(' ') {
            Some(("i" | "r", key)) => (5..=9).contains(&key.parse::<i64>().unwrap()),
            other => other.is_none() && line == "p",
        };
        let mut input = b"i 5\n".to_vec();
        for seed in 0..2000 {
            ops.mutate(&mut input, b"r 7\np\n", &mut chance(seed));
            let text = std::str::from_utf8(&input).unwrap();
            assert!(text.lines().all(valid), "{text}");
            input.truncate(400);
            while !input.is_empty() && !input.ends_with(b"\n") {
                input.pop();
            }
        }
    }

    #[test]
    fn some_mutants_are_long_histories_on_few_keys() {
        let ops = Operations::parse(OPS).unwrap();
        let (mut long, mut mixed) = (0, 0);
        for seed in 0..2000 {
            let mut input = b"i 5\n".to_vec();
            ops.mutate(&mut input, b"", &mut chance(seed));
            let lines = input.split(|&byte| byte == b'\n').count();
            let removes = input.iter().filter(|&&byte| byte == b'r').count();
            long += usize::from(lines > 200);
            mixed += usize::from(lines > 200 && removes > 50 && lines - removes > 50);
        }
        assert!(long > 50 && long < 500, "{long}");
        assert!(mixed > 10, "{mixed}");
    }

    #[test]
    fn bad_files_are_refused_with_a_reason() {
        for (text, reason) in [
            ("operations = []", "no operation"),
            ("operations = ['i {key}']", "`key` is used"),
            ("operations = ['i {k}']\n[parameters]\nk = { min = 3, max = 1 }", "least value"),
            ("operation = ['x']", "unknown field"),
        ] {
            let error = Operations::parse(text).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn seeds_tell_the_operations() {
        let ops = Operations::of_seeds([b"i 5 x\ni 700 x\np\n".as_slice()]).unwrap();
        assert_eq!(ops.operations, ["i {n} x", "p"]);
        assert_eq!(ops.parameters["n"].max, 1400);
        assert!(Operations::of_seeds([[0xff, 0xfe].as_slice()]).is_none());
        assert!(Operations::of_seeds([b"".as_slice()]).is_none());
        // All of them, with numbers of any size, and letters that no seed had.
        let ops = Operations::of_seeds([b"c 5\ni 5\n".as_slice()]).unwrap();
        let mut input = b"i 5\n".to_vec();
        let (mut large, mut others) = (0, 0);
        for seed in 0..2000 {
            ops.mutate(&mut input, b"", &mut chance(seed));
            let text = String::from_utf8(input.clone()).unwrap();
            large += text.lines().filter(|line| line.starts_with("i ") && line.len() > 12).count();
            others += text.lines().filter(|line| !line.starts_with(['i', 'c'])).count();
            input.truncate(text.match_indices('\n').nth(8).map_or(text.len(), |(at, _)| at + 1));
        }
        assert!(large > 0 && others > 0);
    }
}
