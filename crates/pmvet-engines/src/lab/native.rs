//! Stacks of processes that ran without instrumentation: recoveries that failed.

use std::collections::HashMap;
use std::path::PathBuf;

use pmvet_events::{ModuleId, Site};
use pmvet_findings::Stack;
use pmvet_target::sandbox::RawFrame;
use pmvet_target::symbols::Symbolizer;

use crate::stacks::program_frames;

/// Resolves native stacks, and caches what it has read.
#[derive(Debug, Default)]
pub struct NativeStacks {
    symbolizer: Symbolizer,
    modules: HashMap<(PathBuf, u64), ModuleId>,
}

impl NativeStacks {
    /// Functions and lines for raw frames, innermost first; an inlined function is a frame of its own.
    pub fn stack(&mut self, raw: &[RawFrame]) -> Stack {
        let mut sites = Vec::with_capacity(raw.len());
        for frames in raw {
            let module = match &frames.module {
                None => ModuleId(0),
                Some((path, base)) => {
                    let next = ModuleId(self.modules.len() as u32 + 1);
                    *self.modules.entry((path.clone(), *base)).or_insert_with(|| {
                        self.symbolizer.add_module(next, *base, path);
                        next
                    })
                }
            };
            sites.push(Site { pc: frames.pc, module });
        }
        program_frames(&mut self.symbolizer, &sites)
    }
}
