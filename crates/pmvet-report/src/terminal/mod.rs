//! Findings for people at a terminal, in the manner of rustc: the lines in question, what was expected, what happened,
//! what to change; and at the end how many of what, what was covered and what was not.

mod notes;
mod snippets;
mod summary;

use std::{
    ffi::OsString,
    io::{self, Write},
};

use annotate_snippets::{Group, Level, Renderer, renderer::DecorStyle};
use pmvet_findings::{Finding, Run, Severity, Sources, run::is_pedantic};

use crate::{
    Exporter,
    text::{clean, wrap},
};

/// Lines of text are at least this long, however narrow the terminal claims to be.
const MIN_WIDTH: usize = 40;
const DEFAULT_WIDTH: usize = 100;
/// Longer lines of text are hard to read.
const MAX_WIDTH: usize = 120;

/// For people, in the manner of rustc.
#[derive(Debug, Clone)]
pub struct Terminal {
    /// With escape sequences for colours.
    pub color: bool,
    /// In characters.
    pub width: usize,
    /// Only where it is, what happened, and what to do; each finding says how to see the rest.
    pub brief: bool,
    /// Where runs are kept, if commands have to be told.
    pub runs: Option<String>,
    /// Libraries' frames too.
    pub full_stacks: bool,
    /// Findings of rules that are true of correct programs too.
    pub pedantic: bool,
    /// Findings that the baseline knows.
    pub known: bool,
}

impl Default for Terminal {
    fn default() -> Self {
        Terminal {
            color: false,
            width: DEFAULT_WIDTH,
            brief: false,
            runs: None,
            full_stacks: false,
            pedantic: false,
            known: false,
        }
    }
}

/// `--color`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Color {
    /// On a terminal, unless `NO_COLOR` is set.
    #[default]
    Auto,
    /// Also in a pipe.
    Always,
    /// Plain text.
    Never,
}

impl Terminal {
    /// What suits the stream: `columns` if it is a terminal, `env` looks up variables of the environment.
    pub fn new(color: Color, columns: Option<usize>, env: impl Fn(&str) -> Option<OsString>) -> Self {
        let set = |name| env(name).is_some_and(|value| !value.is_empty());
        let dumb = env("TERM").is_some_and(|term| term == "dumb");
        let color = match color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => columns.is_some() && !set("NO_COLOR") && !dumb,
        };
        Terminal { color, width: columns.unwrap_or(DEFAULT_WIDTH), ..Terminal::default() }
    }

    /// One finding, as in `pmvet show`.
    pub fn finding(&self, finding: &Finding, sources: &Sources) -> String {
        self.numbered(finding, None, sources)
    }

    /// One finding and, if it has a number in its run, how to see all of it.
    fn numbered(&self, finding: &Finding, number: Option<usize>, sources: &Sources) -> String {
        let rule = clean(&finding.rule.0);
        // "error[rule]: " before the title; what does not fit stands below its beginning.
        let before = finding.severity.name().len() + rule.chars().count() + 4;
        let title = wrap(&clean(&finding.title), self.width().saturating_sub(before)).join("\n");
        let title = level(finding.severity).primary_title(title).id(rule);
        let snippets = snippets::Snippets::from_finding(finding, sources);
        // "12 | " before the source, "12 = " before a note.
        let width = self.width().saturating_sub(snippets.line_digits() + 3);
        let mut labels = Vec::new();
        let group = snippets.add_to(Group::with_title(title), width, &mut labels);
        let notes = notes::messages(finding, number, &labels, self, width);
        let group = notes.into_iter().fold(group, Group::element);
        let renderer = if self.color { Renderer::styled() } else { Renderer::plain() };
        let mut text =
            renderer.term_width(self.width()).decor_style(DecorStyle::Ascii).render(std::slice::from_ref(&group));
        text.push('\n');
        text
    }

    /// The end of a report: how many of what, what was covered and what was not.
    pub fn summary(&self, run: &Run) -> String {
        summary::text(run, self, self.width())
    }

    /// Whether it shows the finding at all.
    pub fn shows(&self, run: &Run, finding: &Finding) -> bool {
        (self.pedantic || !is_pedantic(finding)) && (self.known || !run.is_known(finding))
    }

    fn width(&self) -> usize {
        self.width.clamp(MIN_WIDTH, MAX_WIDTH)
    }
}

impl Exporter for Terminal {
    fn export(&self, run: &Run, sources: &Sources, out: &mut dyn Write) -> io::Result<()> {
        for (finding, number) in run.findings.iter().zip(1..).filter(|(finding, _)| self.shows(run, finding)) {
            writeln!(out, "{}", self.numbered(finding, Some(number).filter(|_| self.brief), sources))?;
        }
        out.write_all(self.summary(run).as_bytes())
    }
}

fn level(severity: Severity) -> Level<'static> {
    match severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
        Severity::Performance => Level::INFO.with_name("performance"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_only_where_it_is_wanted() {
        let color = |choice, columns, variables: &'static [(&str, &str)]| {
            let env = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into());
            Terminal::new(choice, columns, env).color
        };
        assert!(color(Color::Auto, Some(80), &[]));
        assert!(!color(Color::Auto, None, &[]), "a pipe");
        assert!(!color(Color::Auto, Some(80), &[("NO_COLOR", "1")]));
        assert!(color(Color::Auto, Some(80), &[("NO_COLOR", "")]), "an empty value does not count");
        assert!(!color(Color::Auto, Some(80), &[("TERM", "dumb")]));
        assert!(color(Color::Always, None, &[("NO_COLOR", "1")]));
        assert!(!color(Color::Never, Some(80), &[]));
    }
}
