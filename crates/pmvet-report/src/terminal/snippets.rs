//! The lines of source that a finding is about, both ends of the story in one picture.

use std::{ops::Range, path::PathBuf, sync::Arc};

use annotate_snippets::{Annotation, AnnotationKind, Group, Level, Origin, Snippet};
use pmvet_findings::{Finding, Frame, Place, Sources, source::SourceFile};

use crate::text::clean;

/// More places than this are not shown.
const MAX_PLACES: usize = 6;
/// Lines around a marked one.
const CONTEXT: u32 = 1;
/// A mark may be shorter than the statement to make room for its label, but not shorter than this.
const MIN_MARK: usize = 3;

pub(super) struct Snippets<'a> {
    files: Vec<File<'a>>,
    /// Whether places have different threads, so that labels have to say which.
    threads: bool,
    max_line: u32,
}

/// Places in one file.
struct File<'a> {
    path: PathBuf,
    /// As it is shown.
    name: String,
    source: Option<Arc<SourceFile>>,
    places: Vec<(&'a Place, &'a Frame, bool)>,
}

impl<'a> Snippets<'a> {
    pub(super) fn from_finding(finding: &'a Finding, sources: &Sources) -> Self {
        let mut files: Vec<File<'a>> = Vec::new();
        for (index, place) in finding.places.iter().take(MAX_PLACES).enumerate() {
            let Some(frame) = place.frame() else { continue };
            let path = frame.file.clone().filter(|_| frame.has_line()).unwrap_or_default();
            let source = sources.file(&path).filter(|file| file.line(frame.line.unwrap_or(0)).is_some());
            let entry = (place, frame, index == 0);
            match files.iter_mut().find(|file| file.path == path && file.source.is_some() && source.is_some()) {
                Some(file) => file.places.push(entry),
                None => {
                    let name = clean(&sources.relative(&path).as_ref().unwrap_or(&path).to_string_lossy());
                    files.push(File { path, name, source, places: vec![entry] });
                }
            }
        }
        let mut threads: Vec<u32> = finding.places.iter().filter_map(|place| place.thread).collect();
        threads.sort_unstable();
        threads.dedup();
        let lines = files.iter().filter(|file| file.source.is_some()).flat_map(|file| &file.places);
        let max_line = lines.filter_map(|(_, frame, _)| frame.line).max().unwrap_or(0).saturating_add(CONTEXT);
        Snippets { files, threads: threads.len() > 1, max_line }
    }

    /// How many columns line numbers take.
    pub(super) fn line_digits(&self) -> usize {
        self.max_line.to_string().len()
    }

    /// `width` is that of source lines; labels that have no room beside theirs go to `left_over`.
    pub(super) fn add_to<'g>(
        &self,
        mut group: Group<'g>,
        width: usize,
        left_over: &mut Vec<(u32, String)>,
    ) -> Group<'g> {
        for file in &self.files {
            group = match &file.source {
                Some(source) => group.element(self.snippet(file, source, width, left_over)),
                None => self.origins(file, group),
            };
        }
        group
    }

    fn snippet<'g>(
        &self,
        file: &File<'_>,
        source: &SourceFile,
        width: usize,
        left_over: &mut Vec<(u32, String)>,
    ) -> Snippet<'g, Annotation<'g>> {
        let numbers = || file.places.iter().filter_map(|(_, frame, _)| frame.line);
        let first = numbers().min().unwrap_or(1).saturating_sub(CONTEXT).max(1);
        let last = numbers().max().unwrap_or(1).saturating_add(CONTEXT).min(source.line_count());
        let mut text = String::new();
        let mut annotations = Vec::new();
        for (number, line) in source.lines(first, last) {
            let line = clean(line);
            let start = text.len();
            let span = marked(&line);
            let span = start + span.start..start + span.end;
            let here = file.places.iter().filter(|(_, frame, _)| frame.line == Some(number));
            let before = annotations.len();
            for (place, frame, primary) in here {
                let kind = if *primary { AnnotationKind::Primary } else { AnnotationKind::Context };
                let label = self.label(place, frame, &line);
                let room = width.saturating_sub(span.start - start + 1);
                annotations.push(match room.checked_sub(label.chars().count()).filter(|room| *room >= MIN_MARK) {
                    Some(room) => kind.span(shortened(&text, &line, &span, room)).label(label),
                    None => {
                        left_over.push((number, label));
                        kind.span(shortened(&text, &line, &span, room))
                    }
                });
            }
            let near = numbers().any(|marked| marked.abs_diff(number) <= CONTEXT);
            if before == annotations.len() && near && !span.is_empty() {
                annotations.push(AnnotationKind::Visible.span(span));
            }
            text.push_str(&line);
            text.push('\n');
        }
        Snippet::source(text).line_start(first as usize).path(file.name.clone()).annotations(annotations)
    }

    /// For places whose source is not here: file and line, or symbol and offset.
    fn origins<'g>(&self, file: &File<'_>, mut group: Group<'g>) -> Group<'g> {
        for (place, frame, _) in &file.places {
            let origin = match (&frame.file, frame.line) {
                (Some(_), Some(line)) if line > 0 => Origin::path(file.name.clone()).line(line as usize),
                _ => Origin::path(clean(&frame.to_string())),
            };
            let label = self.label(place, frame, "");
            group = group.element(origin).element(Level::NOTE.with_name("here").message(label));
        }
        group
    }

    /// `source` is the line that it stands beside.
    fn label(&self, place: &Place, frame: &Frame, source: &str) -> String {
        let mut label = clean(&place.label);
        if let Some(thread) = place.thread.filter(|_| self.threads) {
            label = format!("thread {thread}: {label}");
        }
        // The line shown calls a library, in which it happens.
        if let Some(inner) = place.stack.first().filter(|inner| !std::ptr::eq(*inner, frame))
            && let Some(function) = inner.short_function()
            && !source.contains(function.as_str())
        {
            label = format!("{label} (in `{}`)", clean(&function));
        }
        label
    }
}

/// The span, or as many characters of it as there is room for. The line comes after the text.
fn shortened(text: &str, line: &str, span: &Range<usize>, room: usize) -> Range<usize> {
    let marked = line.get(span.start - text.len()..span.end - text.len()).unwrap_or_default();
    let length = marked.char_indices().nth(room).map_or(marked.len(), |(at, _)| at);
    span.start..span.start + length
}

/// The statement on the line: without indentation and without a comment at its end.
fn marked(line: &str) -> Range<usize> {
    let start = line.len() - line.trim_start().len();
    let comment = [" //", " /*"].iter().filter_map(|mark| line.find(mark)).min();
    let end = comment.map_or(line, |at| &line[..at]).trim_end().len();
    if end > start { start..end } else { start..line.trim_end().len().max(start) }
}
