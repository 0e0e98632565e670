//! The programs that must not notice that they are traced.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use pmvet_fixtures::native::build;

/// Where `pmvet trace --` goes, if a command does not begin with it.
pub(crate) const HERE: &str = "<here>";

#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) words: Vec<OsString>,
}

/// Scripts for `sh -c`; the programs in them are on every Debian machine with a compiler.
const SHELL: &[(&str, &str)] = &[
    ("shell pipes", "cat data | tr a-f A-F | sort -r | uniq -c | head -5 | sed 's/^ *//'; echo $?"),
    ("shell loops", "i=0; while [ $i -lt 500 ]; do i=$((i + 1)); case $i in *7) echo $i;; esac; done | tail -3"),
    ("subshells", "x=1; (x=2; echo $x; exit 3); echo $x $?; y=$(echo in; exit 5); echo $y $?; { echo e >&2; } 2>&1"),
    ("background jobs", "for i in 1 2 3 4; do (exit $i) & p=\"$p $!\"; done; for j in $p; do wait $j; echo $?; done"),
    ("traps", "trap 'echo usr1' USR1; trap 'echo bye' EXIT; kill -USR1 $$; (kill -TERM $$) & wait; echo not reached"),
    ("here documents", "cat <<END | wc -c\nsome $HOME text\nEND\nread a b <<END\none two\nEND\necho $b"),
    ("a pipe that closes early", "yes | head -100000 | tail -1; seq 1000000 | head -1"),
    ("exit status of a pipe", "false | true; echo $?; true | false; echo $?; sh -c 'kill -9 $$'; echo $?"),
    ("exec", "exec 3>&1; echo to three >&3; exec env -i A=1 B=2 sh -c 'echo $A $B; exit 9'"),
    ("env", "env | sort; env -i env; env -i X=1 env; ls /proc/self/fd | wc -l"),
    (
        "awk",
        "awk '{ n[substr($1, 1, 1)]++ } END { for (i = 0; i < 16; i++) { k = sprintf(\"%x\", i); print k, n[k] } }' data",
    ),
    ("sed", "sed -n '1~1000{s/line \\([0-9]*\\)/[\\1]/;p}' data; sed -i s/line/row/ data; tail -1 data"),
    (
        "sort in parallel",
        "cat data data data data > more; sort --parallel=4 -S 2M -k 5 more | sha256sum; sort -n -c data",
    ),
    (
        "find",
        "find tree -type f -size +1k -exec wc -c {} + | sort; find tree -name c -print0 | xargs -0 -n1 -P2 cksum; find none",
    ),
    (
        "grep",
        "grep -rc line tree | sort; grep -E '^(ab|cd).*9 ' data | wc -l; grep -P '\\d{5}' data | tail -1; grep -q none data",
    ),
    (
        "tar",
        "tar -cf t.tar --mtime=@0 --owner=0 --group=0 --sort=name tree && mkdir o && tar -xf t.tar -C o && diff -r tree o/tree && sha256sum < t.tar",
    ),
    ("gzip", "gzip -9nk data && sha256sum < data.gz && gzip -dc data.gz | cmp - data && echo good | gzip -d"),
    ("bzip2", "bzip2 -k data && sha256sum < data.bz2 && bzip2 -dc data.bz2 | cmp - data"),
    (
        "xz with threads",
        "cat data data data data > more; xz -k -T4 --block-size=500KiB -1 more && sha256sum < more.xz && xz -dc -T4 more.xz | cmp - more",
    ),
    (
        "git",
        "set -e; export GIT_AUTHOR_DATE='2024-01-01T00:00:00Z' GIT_COMMITTER_DATE='2024-01-01T00:00:00Z'; \
      git init -q -b main .; git config user.name N; git config user.email n@example.org; git add .; git commit -q -m one; \
      git mv data moved; git commit -q -m two; git log --stat --format=%H%n%s; git gc -q; git fsck; git show HEAD~:tree/a | wc -c; \
      git bisect bad",
    ),
    (
        "gcc and its result",
        "printf '#include <stdio.h>\\nint main(int c, char **v) { printf(\"%%d %%s\\\\n\", c, v[1]); return 3; }' > a.c; \
      gcc -O2 -Wall -o a a.c && ./a x; echo $?; echo 'int f(' > b.c; gcc -c b.c",
    ),
    (
        "make",
        "printf 'all: x y\\n\\t@echo all\\nx y:\\n\\t@echo made $@ > $@; cat $@\\nbad:\\n\\t@exit 4\\n' > Makefile; make -j3 -O -s | sort; make -s bad",
    ),
    (
        "dates and numbers",
        "date -u -d @86400; printf '%.3f %x %s\\n' 3.14159 255 word; expr 6 \\* 7; seq 1 3 10; factor 123456789",
    ),
    (
        "files",
        "mkdir d; touch d/x; ln -s x d/y; cp -a d e; mv e f; chmod 600 f/x; stat -c '%a %F %s' f/x f/y; rm -r f; ls f; dd if=data bs=1k count=3 status=none | md5sum",
    ),
    (
        "process list",
        "sh -c 'cat /proc/$$/comm; tr \"\\0\" \" \" < /proc/$$/cmdline' sh one 'two three'; cat /proc/self/comm; readlink /proc/self/exe",
    ),
];

const PYTHON: &[(&str, &str)] = &[
    (
        "python: json, hashes, zlib, regular expressions",
        "import json,hashlib,zlib,re,decimal,random,sys\nt=open('data').read()\nprint(hashlib.sha256(t.encode()).hexdigest(),zlib.crc32(t.encode()),len(zlib.compress(t.encode())))\n\
         print(len(re.findall(r'([0-9a-f]{4})\\w* line \\d*7 ',t)))\nrandom.seed(1)\nprint(json.dumps({'a':[random.random() for _ in range(3)]}),decimal.Decimal(2).sqrt())\nsys.exit(12)",
    ),
    (
        "python: threads, subprocesses, signals",
        "import threading,subprocess,queue,signal,os\nq=queue.Queue()\nts=[threading.Thread(target=lambda i=i:q.put(sum(range(i*1000)))) for i in range(16)]\n\
         [t.start() for t in ts];[t.join() for t in ts]\nprint(sorted(q.get() for _ in ts))\nprint(subprocess.run(['sh','-c','echo out; echo err >&2; exit 3'],capture_output=True,close_fds=True))\n\
         signal.signal(signal.SIGUSR1,lambda *a:print('signal'))\nos.kill(os.getpid(),signal.SIGUSR1)\np=subprocess.Popen(['sleep','100']);p.kill();print(p.wait())\nraise SystemExit('an error')",
    ),
    (
        "python: multiprocessing",
        "import multiprocessing as m\ndef f(x): return x*x\nif __name__=='__main__':\n  with m.get_context('fork').Pool(3) as p: print(p.map(f,range(50)))\n  q=m.Queue();w=m.Process(target=q.put,args=('hi',));w.start();print(q.get());w.join();print(w.exitcode)",
    ),
    (
        "python: ctypes",
        "import ctypes\nc=ctypes.CDLL(None)\nk=ctypes.CFUNCTYPE(ctypes.c_int,ctypes.POINTER(ctypes.c_int),ctypes.POINTER(ctypes.c_int))\na=(ctypes.c_int*9)(*[5,2,9,1,7,3,8,6,4])\n\
         c.qsort(a,9,4,k(lambda x,y:x[0]-y[0]))\nprint(list(a),c.strlen(b'hello'))\nctypes.string_at(1)",
    ),
    (
        "python: sqlite",
        "import sqlite3\nd=sqlite3.connect('db')\nd.execute('pragma journal_mode=wal')\nd.execute('create table t(a integer primary key,b text)')\n\
         d.executemany('insert into t(b) values(?)',[(l,) for l in open('data')]);d.commit()\nd.execute('create index i on t(b)')\n\
         print(d.execute('select count(*),min(b),max(a) from t where b like ?',('%7 of%',)).fetchall());print(d.execute('pragma integrity_check').fetchall())",
    ),
];

/// Programs that a bare machine may lack: each with a command whose first word is looked for.
const OPTIONAL: &[&[&str]] = &[
    &["java", "-Xint", "-XX:-UsePerfData", "-XX:+UseSerialGC", "-version"],
    &[
        "node",
        "-e",
        "let s=0;for(let i=0;i<3e6;i++)s=(s*31+i)%1000003;console.log(s,[3,1,2].sort(),process.argv.length);process.exit(6)",
    ],
    &["openssl", "dgst", "-sha512", "data"],
    &["tclsh", "script.tcl"],
    &["bc", "-l", "script.bc"],
];

/// All cases for this machine, and the programs that it lacks. What must be built goes to `folder`.
pub(crate) fn all(folder: &Path) -> (Vec<Case>, Vec<String>) {
    let bin = folder.join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    let mut cases: Vec<Case> = compiled(&bin);
    cases.extend(SHELL.iter().map(|(name, script)| case(name, &["sh".into(), "-c".into(), script.into()])));
    let bash = "a=(1 2 3); a+=(4); echo ${#a[@]} ${a[@]: -2}; declare -A m=([x]=1); echo ${m[x]} <(true | true) >/dev/null; \
        paste <(seq 3) <(seq 4 6); coproc cat; echo co >&${COPROC[1]}; read -u ${COPROC[0]} l; echo $l; printf '%q\\n' 'a b'; set -o pipefail; false | true";
    cases.push(case("bash", &["bash".into(), "-c".into(), bash.into()]));
    cases.extend(
        PYTHON.iter().map(|(name, script)| case(name, &["/usr/bin/python3".into(), "-c".into(), script.into()])),
    );
    let perl = "open F,'data';while(<F>){$n{length $1}++ while /([0-9]+)/g}print map{\"$_ $n{$_}\\n\"}sort keys %n;$p=fork;if(!$p){exit 7}waitpid $p,0;print $?>>8,`echo sub`;local $SIG{ALRM}=sub{die \"late\\n\"};eval{alarm 1;select undef,undef,undef,9};print $@;die 'end'";
    cases.push(case("perl", &["perl".into(), "-e".into(), perl.into()]));
    let order = [
        "env",
        "-i",
        "Z=1",
        "A=2",
        "PMEM_MMAP_HINT=0",
        "M=3",
        "PMEM_IS_PMEM_FORCE=0",
        "PATH=/usr/bin:/bin",
        "HOME=",
        HERE,
        "env",
    ];
    cases.push(case("the order of the environment", &order.map(OsString::from)));
    cases.push(case("cargo", &[env!("CARGO").into(), "--version".into()]));
    let script = file(
        &bin,
        "script.py",
        "#!/usr/bin/python3 -BE\nimport sys; print(sys.argv, sys.flags.ignore_environment); sys.exit(2)\n",
    );
    cases.push(case("a script with an interpreter", &[script.into(), "one".into(), "".into(), "two three".into()]));
    let mut skipped = Vec::new();
    file(
        &bin,
        "script.tcl",
        "proc f n {expr {$n < 2 ? $n : [f [expr $n-1]] + [f [expr $n-2]]}}\nputs [f 15]\nputs [exec echo sub]\nexit 4\n",
    );
    file(&bin, "script.bc", "scale=50\n4*a(1)\n2^200\n1/0\nquit\n");
    for words in OPTIONAL {
        match lacks(words[0]) {
            true => skipped.push(words[0].to_owned()),
            false => {
                let in_bin = |w: &&str| if bin.join(w).exists() { bin.join(w).into() } else { OsString::from(w) };
                cases.push(case(words[0], &words.iter().map(in_bin).collect::<Vec<_>>()));
            }
        }
    }
    (cases, skipped)
}

/// Our own programs, each about one thing that is hard to keep invisible.
fn compiled(bin: &Path) -> Vec<Case> {
    let mut cases = Vec::new();
    let dies = build(bin, "dies.c", "dies", &[]);
    for how in
        ["abort", "null", "jump", "divide", "illegal", "trap", "kill", "term", "pipe", "realtime", "exit", "_exit"]
    {
        cases.push(case(&format!("dies: {how}"), &[dies.clone().into(), how.into()]));
    }
    let plain = [
        "segv",
        "children",
        "parents",
        "coroutines",
        "signals",
        "threads",
        "memory",
        "code",
        "vectors",
        "descriptors",
        "sandbox",
        "daemon",
        "server",
        "last_moments",
    ];
    for name in plain {
        cases.push(case(name, &[build(bin, &format!("{name}.c"), name, &[]).into()]));
    }
    cases.push(case("exceptions", &[build(bin, "exceptions.cc", "exceptions", &[]).into()]));
    let own = build(bin, "self.c", "self", &[]);
    cases.push(case("what it sees of itself", &[own.into(), "--help".into(), "".into(), "a b".into()]));
    let plugins = [("one.so", "-DVALUE=3"), ("two.so", "-DVALUE=5")];
    let plugins = plugins.map(|(name, value)| build(bin, "plugin.c", name, &["-shared", "-fPIC", value]));
    let loader = build(bin, "loader.c", "loader", &[]);
    cases.push(case("dlopen and dlclose", &[loader.into(), (&plugins[0]).into(), (&plugins[1]).into()]));
    let layouts: [(&str, &[&str]); 3] =
        [("static", &["-static"]), ("static-pie", &["-static-pie", "-fPIE"]), ("fixed-address", &["-no-pie"])];
    for (name, flags) in layouts {
        cases.push(case(name, &[build(bin, "layout.c", name, flags).into(), "6".into()]));
    }
    cases
}

/// See the test that uses them.
pub(crate) fn sigwait(folder: &Path) -> Vec<Case> {
    let program = build(folder, "sigwait.c", "sigwait", &[]);
    ["pending", "process", "thread", "queued"].map(|how| case(how, &[program.clone().into(), how.into()])).into()
}

fn case(name: &str, words: &[OsString]) -> Case {
    Case { name: name.to_owned(), words: words.to_vec() }
}

fn lacks(program: &str) -> bool {
    !["/usr/local/bin", "/usr/bin", "/bin"].iter().any(|folder| Path::new(folder).join(program).exists())
}

fn file(folder: &Path, name: &str, text: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}
