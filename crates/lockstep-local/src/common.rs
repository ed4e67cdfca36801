//! Small things that the command's parts agree on.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The provider's file name.
pub const LIBRARY: &str = "liblockstep.so";

/// The provider library in the directory of this program.
pub fn beside_this_program() -> Result<PathBuf, String> {
    let me = std::env::current_exe().map_err(|e| format!("cannot find the path of this program: {e}"))?;
    let library = me.with_file_name(LIBRARY);
    if library.is_file() {
        return Ok(library);
    }
    Err(format!("there is no {}: build it (`make up` does) or name it with --provider", library.display()))
}

/// The current time in UTC.
pub fn timestamp() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Count days from 1 March of the year 0, so that the leap day is the last day of a year.
    let era_day = days as i64 + 719_468;
    let (era, day) = (era_day.div_euclid(146_097), era_day.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let date = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    format!("{year}-{month:02}-{date:02} {:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// Parses a number of seconds given on the command line.
pub fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.1..=86_400.0).contains(&s) => Ok(Duration::from_secs_f64(s)),
        _ => Err("expected a number of seconds from 0.1 to 86400".into()),
    }
}
