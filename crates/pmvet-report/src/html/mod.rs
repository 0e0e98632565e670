//! A single self-contained HTML page: no network, no framework, opens from a file.
//!
//! The data is JSON in a script element that browsers do not run; the page's own script builds everything else from it
//! with `textContent`, so that a string from the target is never parsed as HTML. A content security policy forbids every
//! request.

mod script_safe;
mod trend;
mod view;

use std::io::{self, Write};

use pmvet_findings::{Run, Sources};

pub use self::trend::EarlierRun;
use crate::Exporter;

const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/style.css");
/// In order of their dependencies.
const SCRIPTS: &[&str] = &[
    include_str!("page/dom.js"),
    include_str!("page/model.js"),
    include_str!("page/source.js"),
    include_str!("page/timeline.js"),
    include_str!("page/lanes.js"),
    include_str!("page/bytes.js"),
    include_str!("page/icicle.js"),
    include_str!("page/covered.js"),
    include_str!("page/trend.js"),
    include_str!("page/overview.js"),
    include_str!("page/detail.js"),
    include_str!("page/list.js"),
    include_str!("page/main.js"),
];

/// Placeholders in the page.
const STYLE_MARK: &str = "/*STYLE*/";
const DATA_MARK: &str = "/*DATA*/";
const SCRIPT_MARK: &str = "/*SCRIPT*/";

/// The HTML exporter: one page that holds everything.
#[derive(Debug, Clone)]
pub struct Html {
    /// How many findings the page shows, the gravest first. With more, browsers are slow to open it.
    pub max_findings: usize,
    /// Runs of the same command, oldest first, to compare this one with.
    pub earlier: Vec<EarlierRun>,
}

impl Default for Html {
    fn default() -> Self {
        Html { max_findings: 20_000, earlier: Vec::new() }
    }
}

impl Exporter for Html {
    fn export(&self, run: &Run, sources: &Sources, out: &mut dyn Write) -> io::Result<()> {
        let mut out = io::BufWriter::new(out);
        let mut rest = PAGE;
        for mark in [STYLE_MARK, DATA_MARK, SCRIPT_MARK] {
            let Some((before, after)) = rest.split_once(mark) else { continue };
            out.write_all(before.as_bytes())?;
            match mark {
                STYLE_MARK => out.write_all(STYLE.as_bytes())?,
                DATA_MARK => view::write(self, run, sources, &mut out)?,
                _ => {
                    out.write_all(b"(() => {\n\"use strict\";\n")?;
                    SCRIPTS.iter().try_for_each(|script| out.write_all(script.as_bytes()))?;
                    out.write_all(b"})();\n")?;
                }
            }
            rest = after;
        }
        out.write_all(rest.as_bytes())?;
        out.flush()
    }
}
