//! Symbolisation of programs compiled with flags that are common in practice.
//!
//! Nothing is run: labels in the sources mark the instructions, and `nm` tells where the linker put them.

// Helpers of tests are not covered by the lint's own exception for tests.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use object::{Object, ObjectSection};
use pmvet_events::{ModuleId, Site};
use pmvet_target::symbols::{DebugInfo, Missing, SymbolizedFrame, Symbolizer};
use proptest::prelude::*;
use tempfile::TempDir;

/// `leaf` is inlined into `middle`, and both into `outer`.
const TREE: &str = r#"
static inline __attribute__((always_inline)) void leaf(volatile int *p) {
    *p = 1;
    __asm__ volatile("site_leaf: nop");
}
static inline __attribute__((always_inline)) void middle(volatile int *p) {
    leaf(p);
}
__attribute__((noinline)) void outer(volatile int *p) {
    middle(p);
    __asm__ volatile("site_outer: nop");
    *p = 2;
}
int main(void) {
    int x;
    outer(&x);
    return x;
}
"#;
const LEAF: &[(&str, u32, bool)] = &[("leaf", 4, true), ("middle", 7, true), ("outer", 10, false)];
const OUTER: &[(&str, u32, bool)] = &[("outer", 11, false)];
const MODULE: ModuleId = ModuleId(7);
/// Where modules that can be anywhere are said to be.
const BASE: u64 = 0x7f12_3456_7000;

/// Runs a tool in `directory`. All tools must exist: a test that is skipped tells nothing.
fn run(directory: &Path, command: &str) {
    let mut words = command.split_whitespace();
    let tool = words.next().unwrap();
    let output = Command::new(tool).args(words).current_dir(directory).output();
    let output = output.unwrap_or_else(|error| panic!("{tool}, which the tests need: {error}"));
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A program in a directory of its own, and where its symbols are.
struct Program {
    directory: TempDir,
    labels: HashMap<String, u64>,
}

impl Program {
    /// Writes the source and runs the commands, the last of which makes `prog`.
    fn new(file: &str, source: &str, commands: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(file), source).unwrap();
        commands.iter().for_each(|command| run(directory.path(), command));
        let mut program = Program { directory, labels: HashMap::new() };
        let output = Command::new("nm").arg(program.path("prog")).output().unwrap();
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let [address, _, name] = words[..] {
                program.labels.insert(name.to_owned(), u64::from_str_radix(address, 16).unwrap());
            }
        }
        program
    }

    fn tree(flags: &str) -> Self {
        Self::new("tree.c", TREE, &[&format!("gcc {flags} tree.c -o prog")])
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn run(&self, command: &str) {
        run(self.directory.path(), command);
    }

    /// A symbolizer that knows the program, loaded at [`BASE`].
    fn symbols(&self) -> Symbolizer {
        let mut symbols = Symbolizer::new();
        symbols.add_debug_root(self.path("root"));
        symbols.add_module(MODULE, BASE, &self.path("prog"));
        symbols
    }

    fn site(&self, label: &str) -> Site {
        Site { pc: BASE + self.labels[label], module: MODULE }
    }

    fn texts(&self, label: &str) -> Vec<String> {
        self.symbols().frames(self.site(label)).iter().map(SymbolizedFrame::to_string).collect()
    }

    /// Checks both marked instructions of [`TREE`], inlined calls included.
    fn assert_lines(&self) {
        self.assert_lines_at(BASE);
    }

    fn assert_lines_at(&self, bias: u64) {
        let mut symbols = self.symbols();
        for (label, expected) in [("site_leaf", LEAF), ("site_outer", OUTER)] {
            let site = Site { pc: bias.wrapping_add(self.labels[label]), module: MODULE };
            let frames = symbols.frames(site);
            let found: Vec<_> =
                frames.iter().map(|f| (f.function.as_deref().unwrap_or("?"), f.line.unwrap_or(0), f.inlined)).collect();
            assert_eq!(found, expected, "{label}");
            for frame in frames {
                assert_eq!(frame.file.as_deref(), Some(self.path("tree.c").as_path()), "{label}");
                assert_eq!(frame.module.as_deref(), Some(self.path("prog").as_path()), "{label}");
                assert_eq!(frame.offset, site.pc - BASE);
            }
            let outermost = frames.last().unwrap();
            assert_eq!(outermost.function_offset, Some(self.labels[label] - self.labels["outer"]));
        }
        assert_eq!(symbols.debug_info(MODULE), DebugInfo::Lines);
        assert_eq!(symbols.advice(MODULE), None);
    }

    fn assert_no_lines(&self) {
        let mut symbols = self.symbols();
        let frames = symbols.frames(self.site("site_leaf"));
        assert_eq!((frames.len(), frames[0].line), (1, None), "{frames:?}");
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.path(name)).unwrap();
    }
}

#[test]
fn types_are_known_by_name() {
    let source = "typedef struct { long pad; union { int flag; char bytes[4]; }; } inner_t;\n\
                  struct bucket { char tag; long lock; unsigned low : 3; long more[4]; };\n\
                  struct table { inner_t in; struct bucket *buckets; };\n\
                  struct table *pool; long *word;\n\
                  struct bucket *get(struct table *t, int i) { struct bucket *b = &t->buckets[i]; return b; }\n\
                  int main(void) { return (int)get(pool, 1)->lock + (int)*word; }\n";
    let split = ["gcc -g -gsplit-dwarf -c types.c -o types.o", "gcc types.o -o prog"];
    let whole: [&[&str]; 4] = [
        &["gcc -g types.c -o prog"],
        &["gcc -g -O2 -gdwarf-4 types.c -o prog"],
        &["clang -g -O1 types.c -o prog"],
        &split,
    ];
    let clang = Command::new("clang").arg("--version").output().is_ok();
    for commands in whole.into_iter().filter(|commands| clang || !commands[0].starts_with("clang")) {
        let types = Program::new("types.c", source, commands).symbols().types();
        let member = |of: &str, name: &str| {
            let member = types.member(&types.structs(of), name)?;
            Some((member.offset, member.of.and_then(|id| types.size(id)), member.is_bit_field))
        };
        assert_eq!(member("bucket", "lock"), Some((8, Some(8), false)), "{commands:?}");
        assert_eq!(member("struct bucket", "more"), Some((24, Some(8), false)));
        assert!(member("bucket", "low").is_some_and(|(_, _, is_bit_field)| is_bit_field));
        assert_eq!(member("inner_t", "flag"), Some((8, Some(4), false)), "a part without a name");
        assert_eq!((member("bucket", "look"), types.structs("buckets")), (None, vec![]));
        let name = |ids: &[_]| ids.first().and_then(|&id| types.struct_name(types.struct_of(id)?));
        assert_eq!(name(types.globals("pool")), Some("table"));
        assert_eq!(name(types.locals("get", "b")), Some("bucket"));
        assert_eq!(name(types.locals("get", "t")), Some("table"));
        assert_eq!(name(types.results("get")), Some("bucket"));
        assert_eq!(name(types.locals("main", "t")), None);
        let word = types.globals("word").first().and_then(|&id| types.pointee(id));
        assert_eq!(word.and_then(|id| types.size(id)), Some(8));
    }
    assert!(Program::tree("").symbols().types().is_empty());
}

#[test]
fn methods_know_their_object() {
    let source = "namespace ns { struct Base { long kept; }; class Table : public Base {\n\
                  public: long busy; static long shared; void begin(); void end() { busy = 0; } }; }\n\
                  long ns::Table::shared; void ns::Table::begin() { busy = kept; }\n\
                  int main() { static ns::Table t; t.begin(); t.end(); return (int)t.busy; }\n";
    for flags in ["-g", "-g -O2"] {
        let types = Program::new("m.cc", source, &[&format!("g++ {flags} m.cc -o prog")]).symbols().types();
        let name = |ids: &[_]| ids.first().and_then(|&id| types.struct_name(types.struct_of(id)?));
        for function in ["begin", "end"] {
            assert_eq!(name(types.locals(function, "this")), Some("ns::Table"), "{flags} {function}");
        }
        for path in ["Table", "ns::Table"] {
            let member = |name| types.member(&types.structs(path), name).map(|member| member.offset);
            assert_eq!((member("busy"), member("kept"), member("shared")), (Some(8), Some(0), None), "{flags}");
        }
    }
}

#[test]
fn variables_are_named() {
    let source = "int table[10]; static long here; long *f(void) { static long here; return &here; }\n\
                  int main(void) { return table[1] + (int)here + (int)*f(); }\n";
    for flags in ["-g", "-O2", "-no-pie"] {
        let program = Program::new("data.c", source, &[&format!("gcc {flags} data.c -o prog")]);
        let (mut symbols, bias) = (program.symbols(), if flags == "-no-pie" { BASE - 0x40_0000 } else { BASE });
        let mut at = |address: u64| symbols.variable(address);
        let table = bias + program.labels["table"];
        assert_eq!(at(table), Some(("table".into(), 0)), "{flags}");
        assert_eq!(at(table + 39), Some(("table".into(), 39)), "{flags}");
        for (name, address) in program.labels.iter().filter(|(name, _)| name.starts_with("here")) {
            assert_eq!(at(bias + address), Some(("here".into(), 0)), "{flags} {name}");
        }
        assert_eq!(at(bias + program.labels["main"]), None, "code is no variable");
        assert_eq!((at(BASE - 1), at(u64::MAX), at(BASE + (1 << 30))), (None, None, None));
    }
}

#[test]
fn dwarf_versions_and_optimisation() {
    for flags in ["-gdwarf-4 -O0", "-gdwarf-4 -O2", "-gdwarf-5 -O0", "-gdwarf-5 -O2", "-g3 -Og"] {
        println!("{flags}");
        Program::tree(flags).assert_lines();
    }
}

#[test]
fn kinds_of_module() {
    Program::tree("-g -O2 -pie -fPIE").assert_lines();
    Program::tree("-g -O2 -shared -fPIC").assert_lines();
    Program::tree("-g -O2 -static-pie -fPIE").assert_lines();
    // These are linked to an address of their own, which is that of their first page.
    Program::tree("-g -O2 -no-pie").assert_lines_at(BASE - 0x40_0000);
    Program::tree("-g -O2 -static -no-pie").assert_lines_at(BASE - 0x40_0000);
    Program::tree("-g -O2 -shared -fPIC -Wl,-Ttext-segment=0x10000000").assert_lines_at(BASE - 0x1000_0000);
}

#[test]
fn compressed_sections() {
    let program = Program::tree("-g -O2 -gz=zlib");
    program.assert_lines();
    program.run("objcopy --decompress-debug-sections --compress-debug-sections=zstd prog");
    program.assert_lines();
    program.run("objcopy --decompress-debug-sections --compress-debug-sections=zlib-gnu prog");
    program.assert_lines();
}

#[test]
fn split_dwarf() {
    for version in [4, 5] {
        println!("DWARF {version}");
        // Compiled to an object first, so that the split file has a plain name.
        let compile = format!("gcc -gdwarf-{version} -gsplit-dwarf -O2 -c tree.c");
        let program = Program::new("tree.c", TREE, &[&compile, "gcc tree.o -o prog"]);
        program.assert_lines();

        // A package serves as well as the files it was made from.
        match version {
            4 => program.run("dwp -e prog -o prog.dwp"),
            _ => package(&program),
        }
        fs::rename(program.path("tree.dwo"), program.path("tree.away")).unwrap();
        program.assert_lines();
        program.remove("prog.dwp");

        // Without either, the line table and the symbols remain.
        assert_eq!(program.texts("site_leaf"), ["outer (tree.c:4)"]);

        // The split file of another build is not used.
        fs::create_dir(program.path("other")).unwrap();
        let changed = TREE.replace("int x;", "int x, unused; (void)unused;");
        fs::write(program.path("other/tree.c"), changed).unwrap();
        program.run(&format!("gcc -gdwarf-{version} -gsplit-dwarf -O2 -c other/tree.c -o tree.o"));
        assert!(program.path("tree.dwo").exists());
        assert_eq!(program.texts("site_leaf"), ["outer (tree.c:4)"]);
    }
}

/// Makes a DWARF 5 package of `tree.dwo`: the same sections and an index, as section 7.3.5 of the standard defines it.
/// The `dwp` of binutils knows no version but 4.
fn package(program: &Program) {
    let content = fs::read(program.path("tree.dwo")).unwrap();
    let dwo = object::File::parse(content.as_slice()).unwrap();
    let names = [(1u32, "info"), (3, "abbrev"), (4, "line"), (5, "loclists"), (6, "str_offsets"), (8, "rnglists")];
    let sections: Vec<(u32, &[u8])> = names
        .iter()
        .filter_map(|(id, name)| Some((*id, dwo.section_by_name(&format!(".debug_{name}.dwo"))?.data().unwrap())))
        .collect();
    // The unit's header is its length, version, type, address size and abbreviations, and then its id.
    let id: [u8; 8] = sections[0].1[12..20].try_into().unwrap();
    let slot = usize::from(id[0] & 1);
    let mut ids = [[0; 8]; 2];
    ids[slot] = id;
    let mut rows = [0; 2];
    rows[slot] = 1;

    let count = sections.len() as u32;
    let mut index: Vec<u8> = [5, count, 1, 2].iter().flat_map(|n: &u32| n.to_le_bytes()).collect();
    index.extend(ids.as_flattened());
    let offsets = sections.iter().map(|_| 0);
    let numbers = rows.into_iter().chain(sections.iter().map(|s| s.0)).chain(offsets);
    index.extend(numbers.chain(sections.iter().map(|s| s.1.len() as u32)).flat_map(u32::to_le_bytes));
    fs::write(program.path("index"), index).unwrap();
    program.run("objcopy --add-section .debug_cu_index=index tree.dwo prog.dwp");
}

/// Moves the debug information of `prog` to `place`.
fn separate(program: &Program, place: &str) {
    let place = program.path(place);
    fs::create_dir_all(place.parent().unwrap()).unwrap();
    program.run(&format!("objcopy --only-keep-debug prog {}", place.display()));
    program.run("strip prog");
}

#[test]
fn debug_file_by_build_id() {
    let program = Program::tree("-g -O2 -Wl,--build-id=0xab0123456789abcdef");
    separate(&program, "root/.build-id/ab/0123456789abcdef.debug");
    program.assert_lines();

    // One that was put there by mistake does not have the id.
    let other = Program::tree("-g -O2 -Wl,--build-id=0xcd0123456789abcdef");
    let place = program.path("root/.build-id/ab/0123456789abcdef.debug");
    fs::copy(other.path("prog"), place).unwrap();
    program.assert_no_lines();
}

#[test]
fn debug_file_by_link() {
    for id in ["-Wl,--build-id", "-Wl,--build-id=none"] {
        let program = Program::tree(&format!("-g -O2 {id}"));
        separate(&program, "prog.debug");
        program.run("objcopy --add-gnu-debuglink=prog.debug prog");
        program.assert_lines();

        let directory = fs::canonicalize(program.directory.path()).unwrap();
        let below_root = Path::new("root").join(directory.strip_prefix("/").unwrap());
        let mut before = PathBuf::from("prog.debug");
        for place in [PathBuf::from(".debug/prog.debug"), below_root.join("prog.debug")] {
            fs::create_dir_all(program.path("").join(&place).parent().unwrap()).unwrap();
            fs::rename(program.path("").join(&before), program.path("").join(&place)).unwrap();
            program.assert_lines();
            before = place;
        }

        // The debug file of another build has neither the checksum nor the build id.
        let other = Program::tree(&format!("-g -O1 {id}"));
        fs::copy(other.path("prog"), program.path("").join(&before)).unwrap();
        program.assert_no_lines();

        // Nor is the program its own debug file.
        program.run("objcopy --remove-section=.gnu_debuglink prog");
        fs::copy(program.path("prog"), program.path("copy")).unwrap();
        program.run("objcopy --add-gnu-debuglink=prog prog");
        program.assert_no_lines();
    }
}

#[test]
fn split_dwarf_of_a_separate_debug_file() {
    let commands = ["gcc -gdwarf-4 -gsplit-dwarf -O2 -c tree.c", "gcc tree.o -o prog -Wl,--build-id=0xab01"];
    let program = Program::new("tree.c", TREE, &commands);
    program.run("dwp -e prog -o prog.dwp");
    program.remove("tree.dwo");
    separate(&program, "root/.build-id/ab/01.debug");
    program.assert_lines();
}

/// `dwz` moves strings that several debug files share to one file. This is what it leaves, written by hand.
#[test]
fn debug_information_shared_by_dwz() {
    const MAIN: &str = r#"
        .text
        .globl marked
        .type marked, @function
    marked:
        .file 1 "moved.c"
        .loc 1 42
    site: nop
        ret
    .Lend:
        .size marked, . - marked
        .section .debug_line
    .Lline:
        .section .debug_info
        .long 2f - 1f
    1:  .short 4
        .long .Labbrev
        .byte 8
        .uleb128 1
        .long .Lline
        .quad marked
        .quad .Lend - marked
        .uleb128 2
        .long 6
        .quad marked
        .quad .Lend - marked
        .byte 0
    2:
        .section .debug_abbrev
    .Labbrev:
        # compile unit: stmt_list (sec_offset), low_pc (addr), high_pc (data8)
        .byte 1, 0x11, 1, 0x10, 0x17, 0x11, 0x01, 0x12, 0x07, 0, 0
        # subprogram: name (GNU_strp_alt), low_pc, high_pc
        .byte 2, 0x2e, 0, 0x03
        .uleb128 0x1f21
        .byte 0x11, 0x01, 0x12, 0x07, 0, 0
        .byte 0
        .section .gnu_debugaltlink
        .asciz "common.debug"
        .byte 0xab, 0x01
    "#;
    const COMMON: &str = "        .section .debug_str\n        .asciz \"other\"\n        .asciz \"shared_name\"\n";
    let program = Program::new("main.s", MAIN, &["gcc -nostdlib -shared main.s -o prog"]);
    fs::write(program.path("common.s"), COMMON).unwrap();
    program.run("gcc -nostdlib -shared common.s -o common.debug -Wl,--build-id=0xab01");
    assert_eq!(program.texts("site"), ["shared_name (moved.c:42)"]);

    fs::create_dir_all(program.path("root/.build-id/ab")).unwrap();
    fs::rename(program.path("common.debug"), program.path("root/.build-id/ab/01.debug")).unwrap();
    assert_eq!(program.texts("site"), ["shared_name (moved.c:42)"]);

    // The line needs no help; the name comes from the symbol table.
    program.remove("root/.build-id/ab/01.debug");
    assert_eq!(program.texts("site"), ["marked (moved.c:42)"]);
}

#[test]
fn without_debug_information() {
    let program = Program::tree("-O2 -shared -fPIC -Wl,--build-id=0xab01");
    let offset = program.labels["site_leaf"] - program.labels["outer"];
    for strip in [false, true] {
        // A stripped library still says which functions it exports.
        if strip {
            program.run("strip prog");
        }
        assert_eq!(program.texts("site_leaf"), [format!("outer+{offset:#x} (prog)")]);
        let mut symbols = program.symbols();
        assert_eq!(symbols.debug_info(MODULE), DebugInfo::SymbolsOnly);
        let advice = symbols.advice(MODULE).unwrap();
        assert!(advice.contains("prog has no debug information: compile it with -g"), "{advice}");
        assert!(advice.contains("build id ab01"), "{advice}");
    }

    let program = Program::tree("-O2 -static -no-pie");
    program.run("strip prog");
    let mut symbols = program.symbols();
    let pc = BASE - 0x40_0000 + program.labels["site_leaf"];
    let frames = symbols.frames(Site { pc, module: MODULE });
    assert_eq!(frames.len(), 1);
    assert_eq!(frames[0].to_string(), format!("prog+{:#x}", pc - BASE));
    assert_eq!(symbols.debug_info(MODULE), DebugInfo::None);
}

#[test]
fn symbols_of_every_kind() {
    const SOURCE: &str = r#"
    void strong(void) { __asm__ volatile("in_strong: nop"); }
    void __alias(void) __attribute__((weak, alias("strong")));
    static void plain(void) { __asm__ volatile("in_plain: nop"); }
    static void (*resolve(void))(void) { __asm__ volatile("in_resolve: nop"); return plain; }
    void indirect(void) __attribute__((ifunc("resolve")));
    void rust_legacy(void) __asm__("_ZN4tree6insert17h0123456789abcdefE");
    void rust_legacy(void) { __asm__ volatile("in_rust_legacy: nop"); }
    void rust_v0(void) __asm__("_RNvNtCs1234_4tree4node6insert");
    void rust_v0(void) { __asm__ volatile("in_rust_v0: nop"); }
    void cpp(void) __asm__("_ZN4tree6insertEiPKc");
    void cpp(void) { __asm__ volatile("in_cpp: nop"); }
    void half_mangled(void) __asm__("_ZNfoo");
    void half_mangled(void) { __asm__ volatile("in_half_mangled: nop"); }
    __asm__(".text\nuntyped: nop\nin_untyped: nop\nuntyped_end: nop");
    "#;
    let program = Program::new("kinds.c", SOURCE, &["gcc -O2 -shared -fPIC kinds.c -o prog"]);
    let mut symbols = program.symbols();
    let mut function = |label: &str| symbols.frames(program.site(label))[0].function.clone().unwrap_or_default();
    assert_eq!(function("in_strong"), "strong");
    assert_eq!(function("in_plain"), "plain");
    assert_eq!(function("in_resolve"), "indirect");
    assert_eq!(function("in_rust_legacy"), "tree::insert");
    assert_eq!(function("in_rust_v0"), "tree::node::insert");
    assert_eq!(function("in_cpp"), "tree::insert(int, char const*)");
    assert_eq!(function("in_half_mangled"), "_ZNfoo");
    assert_eq!(function("untyped"), "untyped");
}

#[test]
fn cpp_lines() {
    const SOURCE: &str = "namespace db {\ntemplate <class T> struct Tree {\n__attribute__((noinline)) void insert(T) {\n\
        __asm__ volatile(\"site: nop\");\n}\n};\n}\nint main() { db::Tree<int>().insert(1); }\n";
    let program = Program::new("tree.cpp", SOURCE, &["g++ -g -O1 tree.cpp -o prog"]);
    assert_eq!(program.texts("site"), ["db::Tree<int>::insert(int) (tree.cpp:4)"]);
    let full = format!("{:#}", program.symbols().frames(program.site("site"))[0]);
    assert_eq!(full, format!("db::Tree<int>::insert(int) ({}:4)", program.path("tree.cpp").display()));
}

/// The one Rust program that is surely there is this test.
#[test]
fn rust_lines() {
    #[inline(never)]
    fn insert() -> u32 {
        std::hint::black_box(line!() - 1)
    }
    let line = insert();
    let own = std::env::current_exe().unwrap();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let first = maps.lines().find(|line| line.ends_with(own.to_str().unwrap())).unwrap();
    let base = u64::from_str_radix(first.split('-').next().unwrap(), 16).unwrap();
    let mut symbols = Symbolizer::new();
    symbols.add_module(MODULE, base, &own);
    // Optimised, its first instruction is already that of the function inlined into it.
    let frame = symbols.frames(Site { pc: insert as fn() -> u32 as usize as u64, module: MODULE }).last().unwrap();
    // With line tables only, as in the release profile, there is no path to the name.
    let function = frame.function.as_deref().unwrap();
    assert!(function == "symbols::rust_lines::insert" || function == "insert", "{frame:?}");
    assert!(frame.line == Some(line) || frame.line == Some(line + 1), "{frame:?}");
    assert!(frame.file.as_ref().unwrap().ends_with("tests/symbols.rs"), "{frame:?}");
}

#[test]
fn generated_code_and_unknown_modules() {
    let mut symbols = Symbolizer::new();
    for module in [ModuleId(0), ModuleId(3)] {
        let frames = symbols.frames(Site { pc: 0x7f32_0000_1000, module });
        assert_eq!(frames, [SymbolizedFrame { offset: 0x7f32_0000_1000, module: None, ..frames[0].clone() }]);
        assert_eq!(frames[0].to_string(), "0x7f3200001000");
        assert_eq!(symbols.debug_info(module), DebugInfo::Missing(Missing::NoModule));
    }
    // An address below the module it is said to be in.
    symbols.add_module(MODULE, BASE, &std::env::current_exe().unwrap());
    assert_eq!(symbols.frames(Site { pc: BASE - 1, module: MODULE })[0].to_string(), format!("{:#x}", BASE - 1));
    assert_eq!(symbols.frames(Site { pc: u64::MAX, module: MODULE }).len(), 1);
}

#[test]
fn files_that_are_not_what_was_loaded() {
    let expect = |mut symbols: Symbolizer, why: Missing| {
        let frames = symbols.frames(Site { pc: BASE + 0x1234, module: MODULE });
        assert_eq!(frames.iter().map(SymbolizedFrame::to_string).collect::<Vec<_>>(), ["prog+0x1234"]);
        assert_eq!(symbols.debug_info(MODULE), DebugInfo::Missing(why));
        assert!(symbols.advice(MODULE).unwrap().starts_with("no source lines for prog: "));
    };
    let program = Program::tree("-g");

    let symbols = program.symbols();
    fs::write(program.path("prog"), fs::read(program.path("prog")).unwrap()).unwrap();
    expect(symbols, Missing::Replaced);
    let symbols = program.symbols();
    program.remove("prog");
    expect(symbols, Missing::Gone);
    expect(program.symbols(), Missing::Gone);
    let symbols = program.symbols();
    program.run("gcc -g tree.c -o prog");
    expect(symbols, Missing::Gone);

    // A recording remembers when it was made.
    for (age, lines) in [(Duration::from_secs(60), false), (Duration::ZERO, true)] {
        let mut symbols = Symbolizer::of_recording(SystemTime::now() - age);
        symbols.add_module(MODULE, BASE, &program.path("prog"));
        match lines {
            true => assert_eq!(symbols.debug_info(MODULE), DebugInfo::Lines),
            false => expect(symbols, Missing::Replaced),
        }
    }

    for content in [&b""[..], b"\x7fELF", b"#!/bin/sh\necho hello\n", b"MZ\x90", &[0; 5000]] {
        fs::write(program.path("prog"), content).unwrap();
        expect(program.symbols(), Missing::NotElf);
    }
    program.remove("prog");
    fs::create_dir(program.path("prog")).unwrap();
    expect(program.symbols(), Missing::NotElf);
    fs::remove_dir(program.path("prog")).unwrap();
    program.run("mkfifo prog");
    expect(program.symbols(), Missing::NotElf);
}

#[test]
fn a_module_announced_again_is_looked_at_again() {
    let program = Program::tree("-g -O2");
    let mut symbols = program.symbols();
    assert_eq!(symbols.frames(program.site("site_outer"))[0].line, Some(11));
    symbols.add_module(MODULE, BASE + 0x10_0000, &program.path("prog"));
    assert_eq!(
        symbols.frames(Site { pc: program.site("site_outer").pc + 0x10_0000, module: MODULE })[0].line,
        Some(11)
    );
    assert_eq!(symbols.frames(program.site("site_outer"))[0].line, None);
}

/// The bound is loose, for slow machines and builds without optimisation; the point is that it is not quadratic.
#[test]
fn many_sites_are_fast() {
    // As many functions as libc has, each with several lines.
    let functions = (0..2500).map(|i| format!("int f{i}(int *p) {{\n*p += {i};\np[1] -= {i};\nreturn *p;\n}}\n"));
    let program = Program::new("many.c", &functions.collect::<String>(), &["gcc -g -O1 -shared -fPIC many.c -o prog"]);
    let libc = fs::read_to_string("/proc/self/maps").unwrap();
    let libc = libc.lines().find_map(|line| line.split_whitespace().nth(5).filter(|path| path.contains("/libc.so")));
    let modules = [(program.path("prog"), program.labels["f0"], 3, true), (libc.unwrap().into(), 0x2_8000, 100, false)];
    for (path, first, step, lines) in modules {
        let start = Instant::now();
        let mut symbols = Symbolizer::new();
        symbols.add_module(MODULE, BASE, &path);
        // Small steps, in an order that is not that of the addresses.
        let known = (0..10_000u64)
            .filter(|i| {
                let pc = BASE + first + i * 7919 % 10_000 * step;
                let frame = &symbols.frames(Site { pc, module: MODULE })[0];
                if lines { frame.line.is_some() } else { frame.function.is_some() }
            })
            .count();
        println!("{}: {known} of 10000 known, {:?}", path.display(), start.elapsed());
        assert!(known > 9_000, "{known}");
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    }
}

/// Small files of every format that is parsed, to be damaged.
fn specimens() -> &'static [Vec<u8>] {
    static SPECIMENS: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    SPECIMENS.get_or_init(|| {
        let small = "-O2 -nostdlib -shared -fPIC -Wl,--build-id";
        let flags = ["-gdwarf-4", "-gdwarf-5", "-g -gz=zlib", "-g"];
        let mut programs: Vec<Program> = flags.iter().map(|flag| Program::tree(&format!("{flag} {small}"))).collect();
        programs[3].run("objcopy --compress-debug-sections=zstd prog");
        programs.push(Program::tree(small));
        programs.iter().map(|program| fs::read(program.path("prog")).unwrap()).collect()
    })
}

/// Makes every possible query about a file.
fn interrogate(content: &[u8]) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("prog");
    fs::write(&path, content).unwrap();
    let mut symbols = Symbolizer::new();
    symbols.add_module(MODULE, BASE, &path);
    for pc in (0..0x4000).step_by(0x7).chain([1 << 32, 1 << 47, u64::MAX - BASE]) {
        let frames = symbols.frames(Site { pc: BASE + pc, module: MODULE });
        assert!(!frames.is_empty());
        frames.iter().for_each(|frame| assert!(!frame.to_string().is_empty()));
    }
    symbols.types();
    symbols.variable(BASE + 0x4010);
    symbols.debug_info(MODULE);
    symbols.advice(MODULE);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_files_do_no_harm(mut content in prop::collection::vec(any::<u8>(), 0..2000), elf in any::<bool>()) {
        let header = [0x7f, b'E', b'L', b'F', 2, 1, 1, 0];
        if elf && content.len() > header.len() {
            content[..header.len()].copy_from_slice(&header);
        }
        interrogate(&content);
    }

    #[test]
    fn damaged_files_do_no_harm(
        which in any::<prop::sample::Index>(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        end in prop::option::weighted(0.1, any::<prop::sample::Index>()),
    ) {
        let mut content = which.get(specimens()).clone();
        for (at, value) in flips {
            let at = at.index(content.len());
            content[at] = value;
        }
        if let Some(end) = end {
            content.truncate(end.index(content.len()));
        }
        interrogate(&content);
    }
}
