//! From bytes to the tree, in one pass and without recursion.

use super::error::{JsonError, JsonErrorKind};
use super::number::Number;
use super::string::{self, Scan};
use super::tree::{Index, Kind, Node, Tree, next, wide};
use super::{DEPTH_MAX, JSON_BYTES_MAX};

/// Parses a whole document.
pub(super) fn document(body: &[u8]) -> Result<Tree<'_>, JsonError> {
    if body.len() > JSON_BYTES_MAX {
        return Err(JsonError::new(JsonErrorKind::TooLarge, JSON_BYTES_MAX));
    }
    if let Err(error) = str::from_utf8(body) {
        return Err(JsonError::new(JsonErrorKind::Encoding, error.valid_up_to()));
    }
    // Enough for most small documents; a large one grows what it needs.
    let likely = (body.len() / 6).min(1 << 12);
    let tree = Tree {
        body,
        nodes: Vec::with_capacity(likely),
        order: Vec::with_capacity(likely),
        text: Vec::new(),
    };
    let mut parser = Parser { tree, at: 0, open: Vec::with_capacity(16) };
    if body.starts_with(b"\xEF\xBB\xBF") {
        parser.at = 3;
    }
    parser.run()?;
    Ok(parser.tree)
}

struct Parser<'a> {
    tree: Tree<'a>,
    /// How much of the body has been read.
    at: usize,
    /// The containers that are open, outermost first: their nodes, and whether they are objects.
    open: Vec<(Index, bool)>,
}

impl<'a> Parser<'a> {
    fn run(&mut self) -> Result<(), JsonError> {
        loop {
            self.value()?;
            // After a value: close what ends here, until there is a next value to read.
            loop {
                let Some((container, object)) = self.open.last().copied() else {
                    return self.end();
                };
                match (self.byte(), object) {
                    (Some(b','), object) => {
                        self.step();
                        if object {
                            self.name()?;
                        }
                        break;
                    }
                    (Some(b']'), false) | (Some(b'}'), true) => self.close(container, object)?,
                    (Some(_), _) => return self.fail(JsonErrorKind::ExpectedComma),
                    (None, _) => return self.fail(JsonErrorKind::Incomplete),
                }
            }
        }
    }

    /// Reads values up to and including the first that is a scalar or an empty container.
    fn value(&mut self) -> Result<(), JsonError> {
        loop {
            match self.byte() {
                Some(b'"') => return self.string(),
                Some(b'-' | b'0'..=b'9') => return self.number(),
                Some(b'{') => {
                    let container = self.open(Kind::Object)?;
                    if self.byte() == Some(b'}') {
                        return self.close(container, true);
                    }
                    self.name()?;
                }
                Some(b'[') => {
                    let container = self.open(Kind::Array)?;
                    if self.byte() == Some(b']') {
                        return self.close(container, false);
                    }
                }
                Some(b't') => return self.literal(b"true"),
                Some(b'f') => return self.literal(b"false"),
                Some(b'n') => return self.literal(b"null"),
                Some(_) => return self.fail(JsonErrorKind::ExpectedValue),
                None => return self.fail(JsonErrorKind::Incomplete),
            }
        }
    }

    /// The next byte that is not white space, not consumed.
    fn byte(&mut self) -> Option<u8> {
        loop {
            match self.tree.body.get(self.at) {
                Some(b' ' | b'\t' | b'\n' | b'\r') => self.step(),
                byte => return byte.copied(),
            }
        }
    }

    fn step(&mut self) {
        self.at = self.at.saturating_add(1);
    }

    fn rest(&self) -> &'a [u8] {
        self.tree.body.get(self.at..).unwrap_or_default()
    }

    /// The end of the document.
    fn end(&mut self) -> Result<(), JsonError> {
        if self.byte().is_none() { Ok(()) } else { self.fail(JsonErrorKind::Trailing) }
    }

    /// A member name and its colon.
    fn name(&mut self) -> Result<(), JsonError> {
        match self.byte() {
            Some(b'"') => self.string()?,
            Some(_) => return self.fail(JsonErrorKind::ExpectedName),
            None => return self.fail(JsonErrorKind::Incomplete),
        }
        match self.byte() {
            Some(b':') => self.step(),
            Some(_) => return self.fail(JsonErrorKind::ExpectedColon),
            None => return self.fail(JsonErrorKind::Incomplete),
        }
        Ok(())
    }

    fn string(&mut self) -> Result<(), JsonError> {
        self.step();
        let (start, written) = (self.at, self.tree.text.len());
        let rest = self.rest();
        let scan = string::scan(rest, &mut self.tree.text)
            .map_err(|(kind, fine)| JsonError::new(kind, start.saturating_add(fine)))?;
        let (Scan::Plain(length) | Scan::Unescaped { length }) = scan;
        let end = start.saturating_add(length);
        self.at = end.saturating_add(1);
        match scan {
            Scan::Plain(_) => self.push(Kind::String, start, end),
            Scan::Unescaped { .. } => self.push(Kind::Unescaped, written, self.tree.text.len()),
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), JsonError> {
        let (start, written) = (self.at, self.tree.text.len());
        if let Some(length) = Number::plain(self.rest()) {
            self.at = start.saturating_add(length);
            self.push(Kind::Plain, start, self.at);
            return Ok(());
        }
        let (number, length) = Number::scan(self.rest()).map_err(|fine| {
            let at = start.saturating_add(fine);
            let ended = at >= self.tree.body.len();
            let kind = if ended { JsonErrorKind::Incomplete } else { JsonErrorKind::Number };
            JsonError::new(kind, at)
        })?;
        self.at = start.saturating_add(length);
        number.write(&mut self.tree.text).map_err(|kind| JsonError::new(kind, start))?;
        self.push(Kind::Number, written, self.tree.text.len());
        Ok(())
    }

    fn literal(&mut self, text: &[u8]) -> Result<(), JsonError> {
        let start = self.at;
        if !self.rest().starts_with(text) {
            return self.fail(JsonErrorKind::ExpectedValue);
        }
        self.at = start.saturating_add(text.len());
        self.push(Kind::Plain, start, self.at);
        Ok(())
    }

    /// Opens a container; its `end` is set when it is closed.
    fn open(&mut self, kind: Kind) -> Result<Index, JsonError> {
        if self.open.len() >= DEPTH_MAX {
            return self.fail(JsonErrorKind::TooDeep);
        }
        let index = narrow(self.tree.nodes.len());
        self.push(kind, self.at, self.at);
        self.open.push((index, kind == Kind::Object));
        self.step();
        Ok(index)
    }

    /// Closes a container at its closing bracket.
    fn close(&mut self, container: Index, object: bool) -> Result<(), JsonError> {
        let end = narrow(self.tree.nodes.len());
        let start = if object { self.sort_names(container, end)? } else { 0 };
        if let Some(node) = self.tree.nodes.get_mut(wide(container)) {
            (node.start, node.end) = (start, end);
        }
        self.open.pop();
        self.step();
        Ok(())
    }

    /// Puts the names of an object in order and returns where they begin.
    fn sort_names(&mut self, object: Index, end: Index) -> Result<Index, JsonError> {
        let start = self.tree.order.len();
        let first = start.saturating_add(1);
        let mut order = std::mem::take(&mut self.tree.order);
        order.push(0);
        let mut name = next(object);
        while name < end {
            order.push(name);
            name = self.tree.after(next(name));
        }
        let tree = &self.tree;
        let names = order.get_mut(first..).unwrap_or_default();
        if names.len() > 1 {
            names.sort_unstable_by(|a, b| tree.name(*a).cmp(tree.name(*b)).then(a.cmp(b)));
        }
        let twice = names.array_windows().find(|[a, b]| tree.name(*a) == tree.name(*b));
        if let Some([_, again]) = twice {
            return Err(JsonError::new(JsonErrorKind::DuplicateName, self.position(*again)));
        }
        let count = narrow(names.len());
        if let Some(slot) = order.get_mut(start) {
            *slot = count;
        }
        self.tree.order = order;
        Ok(narrow(start))
    }

    /// Where a name stands in the body. That of a name with escapes is no longer known, so the
    /// end of its object has to do.
    fn position(&self, name: Index) -> usize {
        match self.tree.node(name) {
            Some(Node { kind: Kind::String, start, .. }) => wide(start).saturating_sub(1),
            _ => self.at,
        }
    }

    fn push(&mut self, kind: Kind, start: usize, end: usize) {
        let (start, end) = (narrow(start), narrow(end));
        self.tree.nodes.push(Node { kind, removed: false, start, end });
    }

    fn fail<T>(&self, kind: JsonErrorKind) -> Result<T, JsonError> {
        Err(JsonError::new(kind, self.at))
    }
}

/// An index for the tree. All of them fit: nodes, names and text are each at most twice as many
/// as the bytes of the body, and these are bounded.
fn narrow(index: usize) -> Index {
    const { assert!(JSON_BYTES_MAX < 1 << 31) };
    Index::try_from(index).unwrap_or(Index::MAX)
}
