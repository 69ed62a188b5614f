//! From bytes to the tree, in one pass and without recursion.

use super::error::{JsonError, JsonErrorKind};
use super::number::Number;
use super::string;
use super::tree::{Node, NodeIndex, NodeKind, Tree, wide};
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
        text: Vec::with_capacity(likely),
    };
    let (open, names) = (Vec::with_capacity(16), Vec::with_capacity(32));
    let mut parser = Parser { tree, at: 0, open, names };
    if body.starts_with(b"\xEF\xBB\xBF") {
        parser.at = 3;
    }
    parser.run()?;
    Ok(parser.tree)
}

struct Parser<'a> {
    tree: Tree<'a>,
    /// How much of the body has been read: at most all of it, so adding to it never wraps.
    at: usize,
    /// The containers that are open, outermost first.
    open: Vec<OpenContainer>,
    /// The names so far of the objects that are open, outermost first.
    names: Vec<MemberName>,
}

/// A container that is open.
#[derive(Clone, Copy)]
struct OpenContainer {
    node: NodeIndex,
    object: bool,
    /// How many names there were before its own.
    names: NodeIndex,
}

/// A name of an object that is open.
#[derive(Clone, Copy)]
struct MemberName {
    /// The first eight bytes, which are mostly enough to put two names in order.
    head: u64,
    node: NodeIndex,
}

impl Parser<'_> {
    fn run(&mut self) -> Result<(), JsonError> {
        let mut named = false;
        loop {
            if named {
                self.name()?;
            }
            match self.byte() {
                Some(b'"') => _ = self.string()?,
                Some(b'-' | b'0'..=b'9') => self.number()?,
                Some(first @ (b'{' | b'[')) => {
                    named = first == b'{';
                    self.open(named)?;
                    let empty = if named { b'}' } else { b']' };
                    if self.byte() != Some(empty) {
                        continue;
                    }
                }
                Some(first @ (b't' | b'f' | b'n')) => self.literal(first)?,
                Some(_) => return self.fail(JsonErrorKind::ExpectedValue),
                None => return self.fail(JsonErrorKind::Incomplete),
            }
            // After a value: close what ends here, until there is a next value to read.
            loop {
                let Some(open) = self.open.last().copied() else { return self.end() };
                match (self.byte(), open.object) {
                    (Some(b','), object) => {
                        self.step();
                        named = object;
                        break;
                    }
                    (Some(b']'), false) | (Some(b'}'), true) => self.close(open)?,
                    (Some(_), _) => return self.fail(JsonErrorKind::ExpectedComma),
                    (None, _) => return self.fail(JsonErrorKind::Incomplete),
                }
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
        self.at = self.at.wrapping_add(1);
    }

    /// The end of the document.
    fn end(&mut self) -> Result<(), JsonError> {
        if self.byte().is_none() { Ok(()) } else { self.fail(JsonErrorKind::Trailing) }
    }

    /// A member name and its colon.
    #[inline]
    fn name(&mut self) -> Result<(), JsonError> {
        match self.byte() {
            Some(b'"') => {}
            Some(_) => return self.fail(JsonErrorKind::ExpectedName),
            None => return self.fail(JsonErrorKind::Incomplete),
        }
        let node = narrow(self.tree.nodes.len());
        let head = self.string()?;
        self.names.push(MemberName { head, node });
        match self.byte() {
            Some(b':') => self.step(),
            Some(_) => return self.fail(JsonErrorKind::ExpectedColon),
            None => return self.fail(JsonErrorKind::Incomplete),
        }
        Ok(())
    }

    /// A string, and its first bytes.
    #[inline(always)]
    fn string(&mut self) -> Result<u64, JsonError> {
        self.step();
        let start = self.at;
        let rest = self.tree.body.get(start..).unwrap_or_default();
        let length = string::run(rest);
        if rest.get(length) == Some(&b'"') {
            let end = start.wrapping_add(length);
            self.at = end.wrapping_add(1);
            self.push(NodeKind::String, start, end);
            return Ok(string::head(rest, length));
        }
        let written = self.tree.text.len();
        let length = string::unescaped(rest, &mut self.tree.text)
            .map_err(|(kind, fine)| JsonError::new(kind, start.saturating_add(fine)))?;
        self.at = start.wrapping_add(length).wrapping_add(1);
        self.push(NodeKind::Unescaped, written, self.tree.text.len());
        let text = self.tree.text.get(written..).unwrap_or_default();
        Ok(string::head(text, text.len()))
    }

    fn number(&mut self) -> Result<(), JsonError> {
        let (start, written) = (self.at, self.tree.text.len());
        let rest = self.tree.body.get(start..).unwrap_or_default();
        if let Some(length) = Number::plain(rest) {
            self.at = start.wrapping_add(length);
            self.push(NodeKind::Plain, start, self.at);
            return Ok(());
        }
        if let Some(length) = Number::decimal(rest, &mut self.tree.text) {
            self.at = start.wrapping_add(length);
            self.push(NodeKind::Number, written, self.tree.text.len());
            return Ok(());
        }
        let (number, length) = Number::scan(rest).map_err(|fine| {
            let at = start.saturating_add(fine);
            let ended = at >= self.tree.body.len();
            let kind = if ended { JsonErrorKind::Incomplete } else { JsonErrorKind::Number };
            JsonError::new(kind, at)
        })?;
        self.at = start.wrapping_add(length);
        number.write(&mut self.tree.text).map_err(|kind| JsonError::new(kind, start))?;
        self.push(NodeKind::Number, written, self.tree.text.len());
        Ok(())
    }

    fn literal(&mut self, first: u8) -> Result<(), JsonError> {
        let start = self.at;
        let rest = self.tree.body.get(start..).unwrap_or_default();
        let length = match (first, rest) {
            (b't', [b't', b'r', b'u', b'e', ..]) | (b'n', [b'n', b'u', b'l', b'l', ..]) => 4,
            (b'f', [b'f', b'a', b'l', b's', b'e', ..]) => 5,
            _ => return self.fail(JsonErrorKind::ExpectedValue),
        };
        self.at = start.wrapping_add(length);
        self.push(NodeKind::Plain, start, self.at);
        Ok(())
    }

    /// Opens a container; its `start` and `end` are set when it is closed.
    fn open(&mut self, object: bool) -> Result<(), JsonError> {
        if self.open.len() >= DEPTH_MAX {
            return self.fail(JsonErrorKind::TooDeep);
        }
        let (node, names) = (narrow(self.tree.nodes.len()), narrow(self.names.len()));
        self.push(if object { NodeKind::Object } else { NodeKind::Array }, 0, 0);
        self.open.push(OpenContainer { node, object, names });
        self.step();
        Ok(())
    }

    /// Closes a container at its closing bracket.
    fn close(&mut self, open: OpenContainer) -> Result<(), JsonError> {
        let end = narrow(self.tree.nodes.len());
        let start = if open.object { self.sort_names(open.names)? } else { 0 };
        if let Some(node) = self.tree.nodes.get_mut(wide(open.node)) {
            (node.start, node.end) = (start, end);
        }
        self.open.pop();
        self.step();
        Ok(())
    }

    /// Puts the names of the innermost object in order and returns where they begin.
    fn sort_names(&mut self, before: NodeIndex) -> Result<NodeIndex, JsonError> {
        let start = narrow(self.tree.order.len());
        let tree = &self.tree;
        let names = self.names.get_mut(wide(before)..).unwrap_or_default();
        let compare = |a: &MemberName, b: &MemberName| {
            let rest = || tree.name(a.node).cmp(tree.name(b.node)).then(a.node.cmp(&b.node));
            a.head.cmp(&b.head).then_with(rest)
        };
        if names.len() > 1 {
            names.sort_unstable_by(compare);
        }
        let equal = |a: &MemberName, b: &MemberName| {
            a.head == b.head && tree.name(a.node) == tree.name(b.node)
        };
        if let Some([_, again]) = names.array_windows().find(|[a, b]| equal(a, b)) {
            let again = again.node;
            return Err(JsonError::new(JsonErrorKind::DuplicateName, self.position(again)));
        }
        self.tree.order.push(narrow(names.len()));
        for name in names {
            self.tree.order.push(name.node);
        }
        self.names.truncate(wide(before));
        Ok(start)
    }

    /// Where a name stands in the body. That of a name with escapes is no longer known, so the
    /// end of its object has to do.
    fn position(&self, name: NodeIndex) -> usize {
        match self.tree.node(name) {
            Some(Node { kind: NodeKind::String, start, .. }) => wide(start).saturating_sub(1),
            _ => self.at,
        }
    }

    #[inline]
    fn push(&mut self, kind: NodeKind, start: usize, end: usize) {
        let (start, end) = (narrow(start), narrow(end));
        self.tree.nodes.push(Node { kind, is_removed: false, start, end });
    }

    fn fail<T>(&self, kind: JsonErrorKind) -> Result<T, JsonError> {
        Err(JsonError::new(kind, self.at))
    }
}

/// An index for the tree: the lower half, at no cost. All of them fit: nodes, names and text are
/// each at most twice as many as the bytes of the body, and these are bounded.
fn narrow(index: usize) -> NodeIndex {
    const { assert!(JSON_BYTES_MAX < 1 << 31) };
    let [a, b, c, d, ..] = index.to_le_bytes();
    NodeIndex::from_le_bytes([a, b, c, d])
}
