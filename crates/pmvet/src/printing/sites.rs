//! Sites as text and as JSON, each rendered once.

use std::collections::HashMap;
use std::path::Path;
use std::time::SystemTime;

use pmvet_events::{ModuleId, Places, SiteId};
use pmvet_target::symbols::{SymbolizedFrame, Symbolizer};

use super::json::Object;

#[derive(Debug)]
pub(crate) struct Sites {
    symbolizer: Symbolizer,
    rendered: HashMap<SiteId, Option<Rendered>>,
}

/// One site, in every form that is printed.
#[derive(Debug)]
pub(crate) struct Rendered {
    /// The innermost frame.
    pub(crate) text: String,
    pub(crate) json: Vec<u8>,
    /// All frames, innermost first.
    pub(crate) frames_text: Vec<String>,
    /// As objects with commas between them.
    pub(crate) frames_json: Vec<u8>,
}

impl Sites {
    pub(crate) fn new(recorded: SystemTime) -> Self {
        Self { symbolizer: Symbolizer::of_recording(recorded), rendered: HashMap::new() }
    }

    pub(crate) fn add_module(&mut self, module: ModuleId, base: u64, path: &Path) {
        self.symbolizer.add_module(module, base, path);
        self.rendered.clear();
    }

    /// Nothing for an unknown site.
    pub(crate) fn get(&mut self, id: SiteId, places: &dyn Places) -> Option<&Rendered> {
        if id == SiteId::default() {
            return None;
        }
        let Self { symbolizer, rendered } = self;
        let site = rendered.entry(id).or_insert_with(|| {
            let site = places.site(id)?;
            Some(Rendered::new(site.pc, symbolizer.frames(site)))
        });
        site.as_ref()
    }
}

impl Rendered {
    fn new(pc: u64, frames: &[SymbolizedFrame]) -> Self {
        let mut json = Vec::new();
        if let Some(frame) = frames.first() {
            frame_json(&mut json, pc, frame);
        }
        let mut frames_json = Vec::new();
        for (i, frame) in frames.iter().enumerate() {
            if i > 0 {
                frames_json.push(b',');
            }
            frame_json(&mut frames_json, pc, frame);
        }
        let frames_text: Vec<String> =
            frames.iter().map(|frame| format!("{frame}{}", if frame.inlined { " [inlined]" } else { "" })).collect();
        let text = frames.first().map(SymbolizedFrame::to_string).unwrap_or_default();
        Self { text, json, frames_text, frames_json }
    }
}

fn frame_json(out: &mut Vec<u8>, pc: u64, frame: &SymbolizedFrame) {
    let mut object = Object::start(out);
    if let Some(function) = &frame.function {
        object.text("function", function);
    }
    if let Some(file) = &frame.file {
        object.path("source", file.file_name().unwrap_or(file.as_os_str()));
        object.path("source_path", &**file);
    }
    if let Some(line) = frame.line {
        object.number("line", line.into());
    }
    if let Some(column) = frame.column {
        object.number("column", column.into());
    }
    if let Some(module) = &frame.module {
        object.path("module", &**module);
        object.number("module_offset", frame.offset);
    }
    object.hex("pc", pc);
    if frame.inlined {
        object.flag("inlined", true);
    }
    object.end();
}
