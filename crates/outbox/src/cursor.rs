//! The cursor of a bucket on PostgreSQL, as a pure value.
//!
//! A number that is drawn from a sequence says nothing about when its transaction commits, so a
//! cursor of the form "everything up to number n" loses late commits. This cursor is a pair of
//! snapshots. Delivered is what the older one, `seen`, shows. The *window* is what the younger one
//! shows and `seen` does not; it is delivered in the order of the numbers. Then the younger one
//! becomes `seen`. A transaction that is open for long is in neither, and delays only its own
//! messages.
//!
//! The bounds keep scans short. A transaction that begins after a snapshot draws its numbers above
//! the
//! `floor` that was read before it. Numbers below the floor can only be missing in a snapshot if
//! their transaction ran at that time: it is in the snapshot's list, or above its `xmax`, which is
//! the last transaction that had *ended*, and not the last that had begun. What a snapshot shows
//! has numbers at or below the `ceiling` that was read after it.

/// What of a bucket is delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketCursor {
    /// The snapshot whose messages are delivered.
    pub seen: String,
    /// The floor that was read before `seen`.
    pub seen_floor: i64,
    /// The window that is being delivered, if it takes more than one batch.
    pub window: Option<Window>,
    /// Messages of the window up to this number are delivered.
    pub position: i64,
}

/// The younger snapshot of a cursor, with its bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// In PostgreSQL's text form.
    pub snapshot: String,
    /// The last number that was drawn before the snapshot.
    pub floor: i64,
    /// The last number that was drawn before the moment after the snapshot.
    pub ceiling: i64,
}

/// How far a batch goes in one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The batch was full before the bucket was looked at.
    Unread,
    /// There is more in the window, beyond this number.
    UpTo(i64),
    /// The batch has the rest of the window.
    Exhausted,
}

impl BucketCursor {
    /// Moves the cursor past a delivered batch. `began` is the window of a bucket that had none.
    pub fn advance(&mut self, progress: Progress, began: &Window) {
        match progress {
            Progress::Unread => {}
            Progress::UpTo(number) => {
                self.window.get_or_insert_with(|| began.clone());
                self.position = number;
            }
            Progress::Exhausted => {
                let window = self.window.take().unwrap_or_else(|| began.clone());
                self.seen = window.snapshot;
                self.seen_floor = window.floor;
                self.position = 0;
            }
        }
    }
}

/// How far a batch goes in each of so many buckets, which were read one after the other. A row is
/// the place of its bucket, from 0, and its number.
#[must_use]
pub fn progress(buckets: usize, rows: &[(usize, i64)], is_full: bool) -> Vec<Progress> {
    let last = rows.last().filter(|_| is_full);
    let of = |place| match last {
        Some((end, number)) if place == *end => Progress::UpTo(*number),
        Some((end, _)) if place > *end => Progress::Unread,
        _ => Progress::Exhausted,
    };
    (0..buckets).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(snapshot: &str, floor: i64) -> Window {
        Window { snapshot: snapshot.to_owned(), floor, ceiling: floor + 9 }
    }

    fn cursor() -> BucketCursor {
        BucketCursor { seen: "4:4:".to_owned(), seen_floor: 0, window: None, position: 0 }
    }

    #[test]
    fn a_window_that_fits_a_batch_becomes_what_is_seen() {
        let mut cursor = cursor();
        cursor.advance(Progress::Exhausted, &window("9:9:", 20));
        assert_eq!((cursor.seen.as_str(), cursor.seen_floor), ("9:9:", 20));
        assert_eq!((cursor.window, cursor.position), (None, 0));
    }

    #[test]
    fn a_window_stays_the_same_until_its_last_batch() {
        let mut cursor = cursor();
        cursor.advance(Progress::UpTo(7), &window("9:9:", 20));
        cursor.advance(Progress::UpTo(12), &window("30:30:", 40));
        assert_eq!(cursor.window, Some(window("9:9:", 20)));
        assert_eq!((cursor.seen.as_str(), cursor.position), ("4:4:", 12));
        cursor.advance(Progress::Exhausted, &window("50:50:", 60));
        assert_eq!((cursor.seen.as_str(), cursor.seen_floor, cursor.position), ("9:9:", 20, 0));
    }

    #[test]
    fn a_bucket_behind_a_full_batch_is_unread_and_keeps_its_cursor() {
        let rows = [(0, 4), (1, 3), (1, 8)];
        let [first, second, third] = progress(3, &rows, true)[..] else { panic!("three") };
        assert_eq!((first, second), (Progress::Exhausted, Progress::UpTo(8)));
        let mut kept = cursor();
        kept.advance(third, &window("9:9:", 20));
        assert_eq!(kept, cursor());
        assert_eq!(progress(3, &rows, false), [Progress::Exhausted; 3]);
        assert_eq!(progress(2, &[], false), [Progress::Exhausted; 2]);
    }
}
