//! Places as SARIF locations.

use std::{collections::BTreeMap, fmt::Write, os::unix::ffi::OsStrExt, path::Path};

use pmvet_findings::{Evidence, Finding, Frame, Place, Sources, TimelineStep, stack::user_frames};
use serde_json::{Value, json};

use crate::text::{clean, shorten};

const MAX_RELATED: usize = 20;
const MAX_STEPS: usize = 100;
const MAX_LABEL: usize = 300;
const MAX_SNIPPET: usize = 200;

pub(super) struct Locations<'a> {
    pub(super) sources: &'a Sources,
}

impl Locations<'_> {
    /// Code scanning refuses results without a location.
    pub(super) fn primary(&self, finding: &Finding) -> Value {
        match finding.places.first() {
            Some(place) => self.place(place, None),
            None => self.location(&Frame::default(), None, None),
        }
    }

    pub(super) fn related(&self, finding: &Finding) -> Vec<Value> {
        let others = finding.places.iter().enumerate().skip(1).take(MAX_RELATED);
        others.map(|(id, place)| self.place(place, Some(id))).collect()
    }

    /// The events of the cache lines involved, one thread flow per thread; without events, the stack of the first place.
    pub(super) fn code_flow(&self, finding: &Finding) -> Option<Value> {
        let (Evidence::Trace { timeline } | Evidence::Crash { timeline, .. } | Evidence::Race { timeline, .. }) =
            &finding.evidence;
        let mut threads: BTreeMap<u32, Vec<Value>> = BTreeMap::new();
        for (order, access) in timeline.iter().filter(|access| access.at.is_some()).take(MAX_STEPS).enumerate() {
            let step = json!({ "location": self.step(access), "executionOrder": order });
            threads.entry(access.thread).or_default().push(step);
        }
        if threads.is_empty() {
            let frames = user_frames(&finding.places.first()?.stack);
            let step = |frame: &&Frame| json!({ "location": self.location(frame, Some("called from here"), None) });
            let steps: Vec<Value> = frames.iter().rev().take(MAX_STEPS).map(step).collect();
            threads.insert(finding.places.first()?.thread.unwrap_or(1), steps);
        }
        let flow = |(thread, steps): (u32, Vec<Value>)| json!({ "id": format!("thread {thread}"), "locations": steps });
        let flows: Vec<Value> = threads.into_iter().filter(|(_, steps)| !steps.is_empty()).map(flow).collect();
        (!flows.is_empty()).then(|| json!({ "threadFlows": flows }))
    }

    fn step(&self, access: &TimelineStep) -> Value {
        let object = access.pm.as_ref().map(|pm| match &pm.object {
            Some(object) => format!(" {object}"),
            None => format!(" {:#x}+{}", pm.offset, pm.len),
        });
        let label = format!("{}{}", access.what, object.unwrap_or_default());
        self.location(access.at.as_ref().unwrap_or(&Frame::default()), Some(&label), None)
    }

    fn place(&self, place: &Place, id: Option<usize>) -> Value {
        let nowhere = Frame::default();
        self.location(place.frame().unwrap_or(&nowhere), Some(&place.label), id)
    }

    fn location(&self, frame: &Frame, label: Option<&str>, id: Option<usize>) -> Value {
        let path = frame.file.as_deref().filter(|_| frame.has_line());
        let mut physical = json!({ "artifactLocation": self.artifact(path.or(frame.module.as_deref())) });
        let line = path.and(frame.line).unwrap_or(1);
        let mut region = json!({ "startLine": line.min(i32::MAX as u32) });
        if let Some(text) = path.and_then(|path| self.sources.file(path)?.line(line).map(clean)) {
            region["snippet"] = json!({ "text": shorten(text.trim(), MAX_SNIPPET) });
        }
        physical["region"] = region;
        let mut location = json!({ "physicalLocation": physical });
        if let Some(function) = &frame.function {
            location["logicalLocations"] =
                json!([{ "fullyQualifiedName": shorten(&clean(function), MAX_LABEL), "kind": "function" }]);
        }
        if let Some(label) = label {
            location["message"] = json!({ "text": shorten(&clean(label), MAX_LABEL) });
        }
        if let Some(id) = id {
            location["id"] = json!(id);
        }
        location
    }

    /// Relative to the source root where possible; code scanning ignores files that it cannot find there.
    fn artifact(&self, path: Option<&Path>) -> Value {
        let path = path.unwrap_or(Path::new("unknown"));
        match self.sources.relative(path) {
            Some(relative) => json!({ "uri": uri(&relative), "uriBaseId": "%SRCROOT%" }),
            None if path.is_absolute() => json!({ "uri": format!("file://{}", uri(path)) }),
            None => json!({ "uri": uri(path) }),
        }
    }
}

fn uri(path: &Path) -> String {
    let mut uri = String::new();
    for &byte in path.as_os_str().as_bytes() {
        // Writing to a string cannot fail.
        let _ = match byte {
            b'/' | b'-' | b'_' | b'.' | b'~' => write!(uri, "{}", char::from(byte)),
            byte if byte.is_ascii_alphanumeric() => write!(uri, "{}", char::from(byte)),
            byte => write!(uri, "%{byte:02X}"),
        };
    }
    uri
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_uris() {
        assert_eq!(uri(Path::new("src/a b#c?.c")), "src/a%20b%23c%3F.c");
        assert_eq!(uri(Path::new("ä:x")), "%C3%A4%3Ax");
    }
}
