//! A test case, as LibAFL sees it: its mutators change the input and leave the image alone.

use std::ops::RangeBounds;
use std::vec::{Drain, Splice};

use libafl::inputs::{HasMutatorBytes, Input, ResizableMutator};
use libafl_bolts::HasLen;
use serde::{Deserialize, Serialize};

use super::content::ImageId;
use super::paths::Favour;

/// A test case: an input, and what PM holds when the program starts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Case {
    /// The content of PM at the start, in the image store.
    pub image: ImageId,
    /// What the program reads.
    pub input: Vec<u8>,
}

impl Input for Case {}

impl HasLen for Case {
    fn len(&self) -> usize {
        self.input.len()
    }
}

impl HasMutatorBytes for Case {
    fn mutator_bytes(&self) -> &[u8] {
        &self.input
    }

    fn mutator_bytes_mut(&mut self) -> &mut [u8] {
        &mut self.input
    }
}

impl ResizableMutator<u8> for Case {
    fn resize(&mut self, len: usize, value: u8) {
        self.input.resize(len, value);
    }

    fn extend<'a, I: IntoIterator<Item = &'a u8>>(&mut self, bytes: I) {
        Extend::extend(&mut self.input, bytes);
    }

    fn splice<R, I>(&mut self, range: R, bytes: I) -> Splice<'_, I::IntoIter>
    where
        R: RangeBounds<usize>,
        I: IntoIterator<Item = u8>,
    {
        self.input.splice(range, bytes)
    }

    fn drain<R: RangeBounds<usize>>(&mut self, range: R) -> Drain<'_, u8> {
        self.input.drain(range)
    }
}

/// The name of a kept case's file, in AFL's manner. The file holds the input alone.
pub fn file_name(number: usize, case: &Case, favour: Favour) -> String {
    let favour = match favour {
        Favour::None => "none",
        Favour::Branch => "branch",
        Favour::Count => "count",
        Favour::Path => "path",
    };
    format!("id:{number:06},img:{},fav:{favour}", case.image)
}

/// The number and the image of a kept case, from the name of its file.
pub fn parse_file_name(name: &str) -> Option<(usize, ImageId)> {
    let mut fields = name.split(',').map(|field| field.split_once(':'));
    let (Some(("id", number)), Some(("img", image))) = (fields.next()?, fields.next()?) else { return None };
    Some((number.parse().ok()?, image.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        let case = Case { image: ImageId(77), input: Vec::new() };
        assert_eq!(parse_file_name(&file_name(3, &case, Favour::Path)), Some((3, ImageId(77))));
        assert_eq!(parse_file_name("README"), None);
        assert_eq!(parse_file_name("id:1,img:x"), None);
    }
}
