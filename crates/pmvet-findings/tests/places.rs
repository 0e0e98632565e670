//! Which line of a stack a finding shows, and what it calls the data that is stored there.

use pmvet_findings::{Evidence, Finding, Frame, Place, PmRange, Role, Severity, Sources, dedup::Dedup, rules};

const SOURCE: &str = "static void claim(void)\n{\n\tn->claim = mine;\n\tk.pop = pmemobj_create(path, 0);\n}\n";

fn frame(function: &str, file: &str, line: u32, module: &str) -> Frame {
    Frame {
        function: Some(function.into()),
        file: Some(file.into()),
        line: Some(line),
        module: Some(module.into()),
        ..Frame::default()
    }
}

fn store(stack: Vec<Frame>) -> Place {
    let pm = PmRange { file: "/dev/shm/pool".into(), offset: 8, len: 8, object: None };
    Place { role: Role::Store, stack, thread: None, pm: Some(pm), seq: Some(1), label: String::new() }
}

#[test]
fn wrappers_of_one_store_leave_the_line_to_their_callers() {
    let at = |wrapper: &str, file: &str| {
        let place = store(vec![frame(wrapper, file, 66, "/bin/q"), frame("claim", "q.c", 3, "/bin/q")]);
        place.frame().and_then(|frame| frame.line)
    };
    assert_eq!(at("cas", "q.c"), Some(3));
    assert_eq!(at("atomic_cas", "q.c"), Some(3));
    assert_eq!(at("zoo_pm::Pool::stream", "lib.rs"), Some(3));
    // In its own file a program may call so what decides.
    assert_eq!(at("write", "q.c"), Some(66));
    assert_eq!(at("stream", "q.c"), Some(66));
}

#[test]
fn what_a_library_stores_is_not_called_what_the_line_assigns_to() {
    let sources = Sources::in_memory([("/src/q.c", SOURCE)]);
    let named = |inner: Frame, line: u32| {
        let finding = Finding {
            rule: rules::RECOVERY_FAILURE.id(),
            severity: Severity::Error,
            title: String::new(),
            places: vec![store(vec![inner, frame("claim", "/src/q.c", line, "/bin/q")])],
            expected: String::new(),
            happened: String::new(),
            fix: String::new(),
            caveat: None,
            evidence: Evidence::Trace { timeline: Vec::new() },
            count: 1,
            fingerprint: String::new(),
            replay: None,
        };
        let mut dedup = Dedup::new(&sources);
        dedup.add(finding);
        dedup.finish("run")[0].places[0].pm.as_ref().and_then(|pm| pm.object.clone())
    };
    let library = "/usr/lib/x86_64-linux-gnu/libpmemobj.so.1";
    assert_eq!(named(frame("pmemobj_create", "obj.c", 7, library), 4), None);
    assert_eq!(
        named(frame("__memcpy_avx_unaligned", "memcpy.S", 1, "/lib/x86_64-linux-gnu/libc.so.6"), 3),
        Some("n->claim".into())
    );
}
