//! A record of the programs that have run, so that a long run can be stopped, taken up again, and put together from pieces.
//!
//! A line says `ran FIRST COUNT DEVICE` of programs that agreed or not, and `failed SEED WHAT` of one that did not. Records of
//! several machines add up when they are put one after another.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    ops::Range,
    path::Path,
};

/// What a record says.
#[derive(Debug, Default)]
pub struct Record {
    ran: Vec<Range<u64>>,
    /// What is wrong with which programs.
    pub failures: Vec<String>,
    file: Option<File>,
}

impl Record {
    /// A record that is kept in memory.
    pub fn new() -> Record {
        Record::default()
    }

    /// Reads the record at `path`, where there is one, and goes on writing there.
    ///
    /// # Errors
    /// Where the file cannot be read or written.
    pub fn open(path: &Path) -> io::Result<Record> {
        let mut record = Record::new();
        let text = if path.exists() { std::fs::read_to_string(path)? } else { String::new() };
        for line in text.lines() {
            let mut words = line.splitn(4, ' ');
            match (words.next(), words.next(), words.next()) {
                (Some("ran"), Some(first), Some(count)) => {
                    if let (Ok(first), Ok(count)) = (first.parse::<u64>(), count.parse::<u64>()) {
                        record.ran.push(first..first + count);
                    }
                }
                (Some("failed"), ..) => record.failures.push(line["failed ".len()..].to_owned()),
                _ => {}
            }
        }
        record.file = Some(OpenOptions::new().create(true).append(true).open(path)?);
        Ok(record)
    }

    /// Whether all of these have run.
    pub fn has(&self, seeds: &Range<u64>) -> bool {
        self.ran.iter().any(|ran| ran.start <= seeds.start && seeds.end <= ran.end)
    }

    /// How many of these have run.
    pub fn count(&self, seeds: &Range<u64>) -> u64 {
        let mut ran = self.ran.clone();
        ran.sort_by_key(|ran| ran.start);
        let (mut end, mut count) = (seeds.start, 0);
        for range in ran {
            let (from, to) = (range.start.max(end), range.end.min(seeds.end));
            if from < to {
                count += to - from;
                end = to;
            }
        }
        count
    }

    /// Notes that these programs have run on `device`, and what was wrong.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub fn add(&mut self, seeds: &Range<u64>, device: &str, failures: Vec<String>) -> io::Result<()> {
        if let Some(file) = &mut self.file {
            // One write a batch, so that one that was cut off is run again.
            let mut text = String::new();
            for failure in &failures {
                text.push_str(&format!("failed {}\n", failure.replace('\n', " | ")));
            }
            text.push_str(&format!("ran {} {} {device}\n", seeds.start, seeds.end - seeds.start));
            file.write_all(text.as_bytes())?;
        }
        self.ran.push(seeds.clone());
        self.failures.extend(failures);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Record;

    #[test]
    fn pieces_add_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record");
        let mut record = Record::open(&path).unwrap();
        record.add(&(1..101), "here", Vec::new()).unwrap();
        record.add(&(201..301), "there", vec!["seed 205: one\nand two".to_owned()]).unwrap();
        let mut record = Record::open(&path).unwrap();
        assert!(record.has(&(1..101)) && record.has(&(201..301)) && !record.has(&(101..201)));
        assert_eq!(record.count(&(1..1001)), 200);
        assert_eq!(record.failures, ["seed 205: one | and two"]);
        record.add(&(51..151), "again", Vec::new()).unwrap();
        assert_eq!(Record::open(&path).unwrap().count(&(1..1001)), 250);
    }
}
