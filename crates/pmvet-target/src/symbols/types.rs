//! Types and variables of the program, from DWARF: what a name such as `table.lock` or `pool->lock` means.
//!
//! Only names count, not where a variable lives: a local variable is known by its name and that of its function. If two functions,
//! or two blocks of one, have a variable of that name, the result has all their types.
//!
//! What it misses: type units (`-fdebug-types-section`), what `dwz` has moved to another file, members of variants.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use gimli::{AttributeValue, DebuggingInformationEntry, Dwarf, Reader as _, Unit, UnitOffset};

use super::image::Reader;

/// A type, by the file and the place of its description.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TypeId(u32, usize);

/// A member of a struct, class or union.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Nothing for an anonymous part, whose members count as those of the whole.
    pub name: Option<String>,
    /// From the start of the struct.
    pub offset: u64,
    /// Its type; nothing if it is not described.
    pub of: Option<TypeId>,
    /// It uses only some bits of its bytes, so it has no address.
    pub is_bit_field: bool,
}

#[derive(Debug, Default)]
struct Type {
    kind: Kind,
    /// With the namespaces around it.
    name: Option<String>,
    size: Option<u64>,
    /// The type that a pointer leads to, an alias stands for, or an array is made of.
    target: Option<TypeId>,
    members: Vec<Member>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A number, or anything else that has no parts to name.
    #[default]
    Plain,
    Struct,
    Pointer,
    /// Another name for the same, or the same but constant.
    Alias,
    Array,
}

/// All that modules say about their types.
#[derive(Debug, Default)]
pub struct Types {
    types: HashMap<TypeId, Type>,
    /// Structs by name; several files may describe the same one.
    structs: HashMap<String, Vec<TypeId>>,
    globals: HashMap<String, Vec<TypeId>>,
    /// Parameters and variables by function and name.
    locals: HashMap<(String, String), Vec<TypeId>>,
    /// Functions by the place of their description: methods are described again outside of their class, without a name.
    functions: HashMap<TypeId, String>,
    /// Return types of functions.
    results: HashMap<String, Vec<TypeId>>,
    files: u32,
}

/// Finds the rest of a unit that the compiler has put in a separate file.
pub(super) type SplitUnit<'a> = &'a dyn Fn(&Unit<Reader>) -> Option<Arc<Dwarf<Reader>>>;

/// Bounds on aliases of aliases, and on parts of structs: damaged files have cycles.
const DEEPEST: usize = 32;
const MOST_PARTS: usize = 256;

impl Types {
    /// Whether no module describes any type.
    pub fn is_empty(&self) -> bool {
        self.types.is_empty()
    }

    /// The structs of a name: `table`, `struct table`, or `ns::Table` with any part of its path.
    pub fn structs(&self, name: &str) -> Vec<TypeId> {
        let name =
            ["struct ", "union ", "class "].iter().find_map(|kind| name.strip_prefix(kind)).unwrap_or(name).trim();
        let is = |known: &str| known == name || known.strip_suffix(name).is_some_and(|path| path.ends_with("::"));
        self.structs.iter().filter(|(known, _)| is(known)).flat_map(|(_, all)| all).copied().collect()
    }

    /// The types of global variables of this name.
    pub fn globals(&self, name: &str) -> &[TypeId] {
        self.globals.get(name).map_or(&[], Vec::as_slice)
    }

    /// The types of parameters and variables of this name in functions of that name.
    pub fn locals(&self, function: &str, name: &str) -> &[TypeId] {
        self.locals.get(&(function.to_owned(), name.to_owned())).map_or(&[], Vec::as_slice)
    }

    /// The types that functions of this name return.
    pub fn results(&self, function: &str) -> &[TypeId] {
        self.results.get(function).map_or(&[], Vec::as_slice)
    }

    /// The names of all structs, with their namespaces, in any order.
    pub fn struct_names(&self) -> impl Iterator<Item = &str> {
        self.structs.keys().map(String::as_str)
    }

    /// The names of all global variables, in any order.
    pub fn global_names(&self) -> impl Iterator<Item = &str> {
        self.globals.keys().map(String::as_str)
    }

    /// All members of a struct, those of its anonymous parts and base classes included.
    pub fn members(&self, of: TypeId) -> Vec<Member> {
        let (mut all, mut parts, mut left) = (Vec::new(), vec![(of, 0)], MOST_PARTS);
        while let Some((of, from)) = parts.pop().filter(|_| left > 0) {
            left -= 1;
            for member in self.types.get(&self.plain(of)).iter().flat_map(|of| &of.members) {
                let offset = member.offset.saturating_add(from);
                match (&member.name, member.of) {
                    (Some(_), _) => all.push(Member { offset, ..member.clone() }),
                    (None, part) => parts.extend(part.map(|part| (part, offset))),
                }
            }
        }
        all
    }

    /// The member of this name, in whichever of these structs has it.
    pub fn member(&self, of: &[TypeId], name: &str) -> Option<Member> {
        of.iter().find_map(|&of| self.members(of).into_iter().find(|member| member.name.as_deref() == Some(name)))
    }

    /// The struct that a type leads to, through pointers, arrays and other names.
    pub fn struct_of(&self, mut id: TypeId) -> Option<TypeId> {
        for _ in 0..DEEPEST {
            let known = self.types.get(&id)?;
            match (known.kind, known.target) {
                (Kind::Struct, _) => return Some(id),
                (_, target) => id = target?,
            }
        }
        None
    }

    /// The name of a struct, or the first of its other names if it has none of its own.
    pub fn struct_name(&self, id: TypeId) -> Option<&str> {
        self.types.get(&id).filter(|known| known.kind == Kind::Struct)?.name.as_deref()
    }

    /// How many bytes a variable of the type has; of an array, each of its elements.
    pub fn size(&self, id: TypeId) -> Option<u64> {
        let mut id = id;
        for _ in 0..DEEPEST {
            let known = self.types.get(&id)?;
            match known.kind {
                Kind::Alias | Kind::Array => id = known.target?,
                _ => return known.size,
            }
        }
        None
    }

    /// What a pointer leads to.
    pub fn pointee(&self, id: TypeId) -> Option<TypeId> {
        self.types.get(&self.plain(id)).filter(|known| known.kind == Kind::Pointer)?.target
    }

    /// Resolves aliases.
    fn plain(&self, mut id: TypeId) -> TypeId {
        for _ in 0..DEEPEST {
            match self.types.get(&id) {
                Some(Type { kind: Kind::Alias, target: Some(target), .. }) => id = *target,
                _ => break,
            }
        }
        id
    }

    /// Adds what a file describes, without damaged parts.
    pub(super) fn add(&mut self, dwarf: &Dwarf<Reader>, split: SplitUnit<'_>) {
        let file = self.next_file();
        let mut headers = dwarf.units();
        while let Ok(Some(header)) = headers.next() {
            let Ok(unit) = dwarf.unit(header) else { continue };
            match unit.dwo_id.and_then(|_| split(&unit)) {
                Some(rest) => {
                    let file = self.next_file();
                    let mut headers = rest.units();
                    while let Ok(Some(header)) = headers.next() {
                        if let Ok(unit) = rest.unit(header) {
                            self.add_unit(&rest, &unit, file);
                        }
                    }
                }
                None => self.add_unit(dwarf, &unit, file),
            }
        }
        self.name_the_nameless();
    }

    fn next_file(&mut self) -> u32 {
        self.files += 1;
        self.files
    }

    fn add_unit(&mut self, dwarf: &Dwarf<Reader>, unit: &Unit<Reader>, file: u32) {
        let mut scopes: Vec<(isize, Scope)> = Vec::new();
        let mut entries = unit.entries();
        while let Ok(Some(entry)) = entries.next_dfs() {
            while scopes.last().is_some_and(|(depth, _)| *depth >= entry.depth()) {
                scopes.pop();
            }
            let scope = self.add_entry(&Described { dwarf, unit, file, entry }, &scopes);
            scopes.extend(scope.map(|scope| (entry.depth(), scope)));
        }
    }

    /// Adds one description. Returns the scope for those within it.
    fn add_entry(&mut self, it: &Described<'_>, scopes: &[(isize, Scope)]) -> Option<Scope> {
        let qualified = |name: Option<String>| {
            let mut path = scopes.iter().filter_map(|(_, scope)| match scope {
                Scope::Space(name) | Scope::Struct(_, Some(name)) => Some(name.as_str()),
                _ => None,
            });
            // A struct's own name has the path already.
            let around = path.next_back().map(|path| format!("{path}::")).unwrap_or_default();
            name.map(|name| around + &name)
        };
        let (id, target, size) = (it.id(), it.target(), it.number(gimli::DW_AT_byte_size));
        let mut define = |kind, name: Option<String>, size| {
            self.types.insert(id, Type { kind, name, size, target, members: Vec::new() });
        };
        match it.entry.tag() {
            gimli::DW_TAG_namespace => return Some(Scope::Space(qualified(it.name()).unwrap_or_default())),
            gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type | gimli::DW_TAG_union_type => {
                let name = qualified(it.name());
                if !it.has(gimli::DW_AT_declaration) {
                    define(Kind::Struct, name.clone(), size);
                    name.iter().for_each(|name| self.structs.entry(name.clone()).or_default().push(id));
                }
                return Some(Scope::Struct(id, name));
            }
            gimli::DW_TAG_member | gimli::DW_TAG_inheritance => {
                let Some((_, Scope::Struct(around, _))) = scopes.last() else { return None };
                let is_bit_field = it.has(gimli::DW_AT_bit_size);
                let offset = it.number(gimli::DW_AT_data_member_location).unwrap_or(0);
                let is_static = it.has(gimli::DW_AT_external) || it.has(gimli::DW_AT_declaration);
                if let Some(around) = self.types.get_mut(around).filter(|_| !is_static) {
                    around.members.push(Member { name: it.name(), offset, of: target, is_bit_field });
                }
            }
            gimli::DW_TAG_base_type | gimli::DW_TAG_enumeration_type => define(Kind::Plain, it.name(), size),
            gimli::DW_TAG_pointer_type | gimli::DW_TAG_reference_type | gimli::DW_TAG_rvalue_reference_type => {
                define(Kind::Pointer, None, size.or(Some(8)));
            }
            gimli::DW_TAG_typedef => define(Kind::Alias, qualified(it.name()), None),
            gimli::DW_TAG_const_type
            | gimli::DW_TAG_volatile_type
            | gimli::DW_TAG_restrict_type
            | gimli::DW_TAG_atomic_type => define(Kind::Alias, None, None),
            gimli::DW_TAG_array_type => define(Kind::Array, None, size),
            gimli::DW_TAG_subprogram => {
                let earlier = [gimli::DW_AT_specification, gimli::DW_AT_abstract_origin];
                let earlier = earlier.into_iter().find_map(|name| self.functions.get(&it.refers_to(name)?));
                let name = it.name().or_else(|| earlier.cloned());
                self.functions.extend(name.clone().map(|name| (id, name)));
                let results = name.clone().zip(target);
                results.into_iter().for_each(|(name, target)| self.results.entry(name).or_default().push(target));
                return Some(Scope::Function(name));
            }
            gimli::DW_TAG_variable | gimli::DW_TAG_formal_parameter => {
                let (name, target) = it.name().zip(target)?;
                let inside = scopes.iter().rev().find_map(|(_, scope)| match scope {
                    Scope::Function(function) => Some(function),
                    _ => None,
                });
                match inside {
                    Some(Some(function)) => self.locals.entry((function.clone(), name)).or_default().push(target),
                    Some(None) => {}
                    None => self.globals.entry(name).or_default().push(target),
                }
            }
            _ => {}
        }
        None
    }

    /// Names unnamed structs: `typedef struct { … } table;` is a struct called `table`.
    fn name_the_nameless(&mut self) {
        let mut named: BTreeSet<(TypeId, String)> = BTreeSet::new();
        for known in self.types.values().filter(|known| known.kind == Kind::Alias) {
            let (Some(name), Some(target)) = (&known.name, known.target) else { continue };
            let target = self.plain(target);
            if self.types.get(&target).is_some_and(|of| of.kind == Kind::Struct) {
                named.insert((target, name.clone()));
            }
        }
        for (id, name) in named {
            let known = self.structs.entry(name.clone()).or_default();
            if !known.contains(&id) {
                known.push(id);
            }
            if let Some(of) = self.types.get_mut(&id) {
                of.name.get_or_insert(name);
            }
        }
    }
}

/// What surrounds a description.
#[derive(Debug)]
enum Scope {
    Space(String),
    Struct(TypeId, Option<String>),
    /// Copies of a function, as where it was inlined, have no name.
    Function(Option<String>),
}

/// One description, and where it is.
struct Described<'a> {
    dwarf: &'a Dwarf<Reader>,
    unit: &'a Unit<Reader>,
    file: u32,
    entry: &'a DebuggingInformationEntry<Reader>,
}

impl Described<'_> {
    fn at(&self, offset: UnitOffset) -> TypeId {
        TypeId(self.file, offset.to_unit_section_offset(&self.unit.header).0)
    }

    fn id(&self) -> TypeId {
        self.at(self.entry.offset())
    }

    fn has(&self, name: gimli::DwAt) -> bool {
        self.entry.has_attr(name)
    }

    fn number(&self, name: gimli::DwAt) -> Option<u64> {
        self.entry.attr(name)?.udata_value()
    }

    fn target(&self) -> Option<TypeId> {
        self.refers_to(gimli::DW_AT_type)
    }

    fn refers_to(&self, name: gimli::DwAt) -> Option<TypeId> {
        match self.entry.attr_value(name)? {
            AttributeValue::UnitRef(offset) => Some(self.at(offset)),
            AttributeValue::DebugInfoRef(offset) => Some(TypeId(self.file, offset.0)),
            _ => None,
        }
    }

    fn name(&self) -> Option<String> {
        let value = self.entry.attr_value(gimli::DW_AT_name)?;
        let text = self.dwarf.attr_string(self.unit, value).ok()?;
        Some(text.to_string_lossy().ok()?.into_owned())
    }
}
