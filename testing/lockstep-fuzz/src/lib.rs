//! A harness that feeds decoders what a network, a disk or a person may feed them. For tests only: nothing that ships
//! depends on it.
//!
//! A [`Target`] is a decoder with some valid inputs. [`Target::run`] decodes these, then the stored corpus
//! (`fuzz-corpus/<name>/` of the target's crate), then mutations of both. It fails on any of these:
//!
//! - A panic, of the decoder or of the target's assertions about the result (such as encode(decode(x)) == x).
//! - More memory than the input's size explains ([`Target::memory`]).
//! - An input that takes longer than [`HANG`].
//!
//! An input that fails is written into the corpus, where it stays as a test once its cause is mended. Mutations are drawn
//! from a generator with a fixed seed, so that each run of `cargo test` is the same. With `LOCKSTEP_FUZZ_SECONDS` (`make
//! fuzz`) each target runs for longer, from another seed each time, which it prints.
//!
//! A stable compiler offers no coverage feedback. Instead a target returns a number that says how far it came. An input
//! with a new number is mutated further.

mod memory;
mod mutate;

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub use mutate::Random;

/// Longer than this no input may take, even on a busy machine.
pub const HANG: Duration = Duration::from_secs(20);
/// Mutations in a run of `cargo test`.
const SHORT: u64 = 4_000;
/// Inputs that are mutated further.
const POPULATION: usize = 2_000;
/// A new input is kept by a long run only if it is small.
const KEPT_BYTES: usize = 4_096;
/// And so many of one target.
const KEPT: usize = 16;

/// Changes an input in place, not its length.
pub type Repair<'a> = dyn Fn(&mut [u8]) + 'a;

/// A decoder under test.
pub struct Target<'a> {
    /// Its name, which is its folder in the corpus.
    pub name: &'static str,
    /// `env!("CARGO_MANIFEST_DIR")` of the crate that it is in.
    pub crate_dir: &'static str,
    /// Inputs that are as they should be.
    pub seeds: Vec<Vec<u8>>,
    /// Makes checksums right again after a mutation, so that it gets past them. Used for most of them, not for all.
    pub repair: Option<&'a Repair<'a>>,
    /// The longest input.
    pub max_len: usize,
    /// Bytes of memory that an input may make it take: so many, and so many for each of its own.
    pub memory: (usize, usize),
    /// Whether it is text: mutations keep to characters that somebody could type, for the most part.
    pub text: bool,
    /// Decodes, and asserts what must be so. The number says how far it came: see the crate's text.
    pub test: &'a dyn Fn(&[u8]) -> u64,
}

/// A number for anything that can be shown, for [`Target::test`].
pub fn outcome(shown: &impl std::fmt::Debug) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    // Its shape is of interest, the numbers and texts in it are not.
    let text = format!("{shown:?}");
    let mut quoted = false;
    let shape = text.chars().filter(|c| {
        quoted ^= *c == '"';
        !quoted && !c.is_ascii_hexdigit()
    });
    shape.take(300).collect::<String>().hash(&mut hasher);
    hasher.finish()
}

impl<'a> Target<'a> {
    /// A target of these seeds, with the limits that fit nearly all.
    pub fn new(
        name: &'static str,
        crate_dir: &'static str,
        seeds: Vec<Vec<u8>>,
        test: &'a dyn Fn(&[u8]) -> u64,
    ) -> Target<'a> {
        Target {
            name,
            crate_dir,
            seeds,
            repair: None,
            max_len: 64 * 1024,
            memory: (256 * 1024, 64),
            text: false,
            test,
        }
    }

    /// Runs it.
    ///
    /// # Panics
    /// With the file of the input that failed.
    pub fn run(self) {
        let folder = Path::new(self.crate_dir).join("fuzz-corpus").join(self.name);
        let watch = Watch::start(self.name, folder.clone());
        let mut population = self.seeds.clone();
        let kept = files(&folder);
        population.extend(kept.iter().map(|path| std::fs::read(path).expect("a file of the corpus")));
        let mut seen = BTreeSet::new();
        for (at, input) in population.iter().enumerate() {
            let from = at.checked_sub(self.seeds.len()).map(|at| kept[at].as_path());
            seen.insert(self.one(input, from, &folder, &watch));
        }
        if population.is_empty() {
            population.push(Vec::new());
        }
        let long = std::env::var("LOCKSTEP_FUZZ_SECONDS").ok().and_then(|s| s.parse::<f64>().ok());
        let seed = match (long, std::env::var("LOCKSTEP_FUZZ_SEED").ok().and_then(|s| s.parse().ok())) {
            (_, Some(seed)) => seed,
            (Some(_), None) => {
                SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64)
            }
            (None, None) => 1,
        };
        let end = long.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
        let mut random = Random::new(seed);
        let mut new = Vec::new();
        let mut count = 0u64;
        while end.map_or(count < SHORT, |end| Instant::now() < end) {
            count += 1;
            let mut input = mutate::mutated(&population, self.max_len, self.text, &mut random);
            if let Some(repair) = self.repair
                && random.below(8) != 0
            {
                repair(&mut input);
            }
            if seen.insert(self.one(&input, None, &folder, &watch)) {
                if population.len() < POPULATION {
                    population.push(input.clone());
                }
                new.push(input);
            }
        }
        let added = long.map_or(0, |_| keep(&folder, kept.len(), new));
        eprintln!("fuzz {}: {count} inputs, {} outcomes, seed {seed}, {added} kept", self.name, seen.len());
    }

    fn one(&self, input: &[u8], from: Option<&Path>, folder: &Path, watch: &Watch) -> u64 {
        watch.begin(input);
        let before = memory::begin();
        let result = catch_unwind(AssertUnwindSafe(|| (self.test)(input)));
        let most = memory::peak(before);
        watch.end();
        let limit = self.memory.0 + self.memory.1 * input.len();
        let what = match &result {
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                format!("panicked: {}", text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("?"))
            }
            Ok(_) if most > limit => format!("took {most} bytes of memory for {} bytes", input.len()),
            Ok(outcome) => return *outcome,
        };
        let file = from.map_or_else(|| save(folder, "failed", input), Path::to_owned);
        panic!("{} {what}\nthe input is {}", self.name, file.display());
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()).collect();
    files.sort();
    files
}

/// Writes an input into the corpus, under a name that its content gives.
fn save(folder: &Path, kind: &str, input: &[u8]) -> PathBuf {
    let mut hasher = std::hash::DefaultHasher::new();
    input.hash(&mut hasher);
    let path = folder.join(format!("{kind}-{:016x}", hasher.finish()));
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&path, input))
        .expect("the corpus is writable");
    path
}

/// Saves some of the new inputs, the smallest first.
fn keep(folder: &Path, present: usize, mut new: Vec<Vec<u8>>) -> usize {
    if std::env::var_os("LOCKSTEP_FUZZ_KEEP").is_none() {
        return 0;
    }
    new.retain(|input| input.len() <= KEPT_BYTES);
    new.sort_by_key(Vec::len);
    new.truncate(KEPT.saturating_sub(present));
    for input in &new {
        save(folder, "new", input);
    }
    new.len()
}

/// Ends the process when an input takes too long: a thread that hangs cannot be stopped.
struct Watch {
    begun: Sender<Option<Vec<u8>>>,
}

impl Watch {
    fn start(name: &'static str, folder: PathBuf) -> Watch {
        let (begun, inputs): (_, Receiver<Option<Vec<u8>>>) = channel();
        std::thread::spawn(move || {
            while let Ok(input) = inputs.recv() {
                let Some(input) = input else { continue };
                if matches!(inputs.recv_timeout(HANG), Err(RecvTimeoutError::Timeout)) {
                    let file = save(&folder, "hang", &input);
                    eprintln!("{name} takes more than {} s\nthe input is {}", HANG.as_secs(), file.display());
                    std::process::abort();
                }
            }
        });
        Watch { begun }
    }

    fn begin(&self, input: &[u8]) {
        let _ = self.begun.send(Some(input.to_vec()));
    }

    fn end(&self) {
        let _ = self.begun.send(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target<'a>(test: &'a dyn Fn(&[u8]) -> u64, folder: &Path) -> Target<'a> {
        let dir: &'static str = Box::leak(folder.display().to_string().into_boxed_str());
        Target::new("t", dir, vec![b"good input".to_vec()], test)
    }

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            Folder(std::env::temp_dir().join(format!("ls-fuzz-{name}-{}", std::process::id())))
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// What a run that must fail says; the input that it has kept.
    fn fails(name: &str, test: &dyn Fn(&[u8]) -> u64) -> (String, Vec<u8>) {
        let folder = Folder::new(name);
        let panic = catch_unwind(AssertUnwindSafe(|| target(test, &folder.0).run())).unwrap_err();
        let text = panic.downcast_ref::<String>().unwrap().clone();
        let kept = files(&folder.0.join("fuzz-corpus/t"));
        assert_eq!(kept.len(), 1, "{text}");
        // The kept input fails again, by itself.
        assert!(catch_unwind(AssertUnwindSafe(|| target(test, &folder.0).run())).is_err());
        (text, std::fs::read(&kept[0]).unwrap())
    }

    #[test]
    fn panic_is_found_and_its_input_is_saved() {
        let (text, input) = fails("panic", &|input| {
            assert!(input.first() != Some(&b'G'), "a planted bug");
            0
        });
        assert!(text.contains("a planted bug"), "{text}");
        assert_eq!(input.first(), Some(&b'G'));
    }

    #[test]
    fn memory_out_of_proportion_is_found() {
        let (text, _) = fails("memory", &|input| {
            let claimed = input.first().map_or(0, |b| usize::from(*b)) << 14;
            Vec::<u8>::with_capacity(claimed).capacity() as u64
        });
        assert!(text.contains("bytes of memory"), "{text}");
    }

    #[test]
    fn input_with_new_progress_is_mutated_further() {
        // Four bytes one after the other, each with an outcome of its own: chance alone would not get there.
        let found = catch_unwind(AssertUnwindSafe(|| {
            let folder = Folder::new("further");
            let deep = |input: &[u8]| {
                let depth = input.iter().zip(b"\x7f\xff\x00\x80").take_while(|(a, b)| a == b).count();
                assert!(depth < 4);
                depth as u64
            };
            let mut target = target(&deep, &folder.0);
            target.seeds = vec![vec![1; 8]];
            target.run();
        }));
        assert!(found.is_err());
    }
}
