//! Requirements of an experiment, checked before it begins: an error names the missing thing and the remedy.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockstep_local::{LocalError, Result, find_program, is_root};

use crate::wan::{Link, Wan};

/// The rights of root, for this.
pub(crate) fn root(what_for: &str) -> Result<()> {
    if is_root()? {
        return Ok(());
    }
    Err(LocalError::Missing { what: format!("the right to {what_for}"), hint: "run as root".into() })
}

/// A program, which this package of Debian's has.
pub(crate) fn program(name: &str, package: &str) -> Result<PathBuf> {
    find_program(name).ok_or_else(|| LocalError::Missing {
        what: format!("the program {name}"),
        hint: format!("Debian: apt-get install {package}"),
    })
}

/// Network namespaces joined by a delay line: a small one is made, and removed when this returns.
pub(crate) fn line() -> Result<()> {
    root("make network namespaces")?;
    program("ip", "iproute2")?;
    Wan::new(&[1, 1], &[Link::of_round_trip(0, 1, Duration::ZERO)]).map(drop)
}

/// Free space for files in `dir`, in bytes.
pub(crate) fn space(dir: &Path, bytes: u64) -> Result<()> {
    let path = CString::new(dir.as_os_str().as_bytes())
        .map_err(|_| LocalError::Value("a path with a zero byte".into()))?;
    let mut stat = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: a live path that ends with zero, and room for one statvfs, which zeroes are a value of.
    let (answer, stat) = unsafe { (libc::statvfs(path.as_ptr(), stat.as_mut_ptr()), stat.assume_init()) };
    if answer != 0 {
        return Err(LocalError::path("ask for the free space of", dir)(io::Error::last_os_error()));
    }
    let free = stat.f_bavail * stat.f_frsize;
    if free >= bytes {
        return Ok(());
    }
    let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
    Err(LocalError::Missing {
        what: format!("room for files of {} in {}", gib(bytes), dir.display()),
        hint: format!("only {} are free", gib(free)),
    })
}

#[test]
fn missing_program_is_named_with_remedy() {
    space(Path::new("/var/tmp"), 1).unwrap();
    let said = space(Path::new("/var/tmp"), 1 << 62).unwrap_err().to_string();
    assert!(said.starts_with("room for files of 4294967296.0 GiB in /var/tmp is missing: only "), "{said}");
    assert!(space(Path::new("/nowhere"), 1).is_err());
    let said = program("no-such-program", "nothing").unwrap_err().to_string();
    assert_eq!(said, "the program no-such-program is missing: Debian: apt-get install nothing");
}
