//! A parsed document as one flat list of nodes.
//!
//! Nodes lie in the order of the document, a container before what it contains, so a subtree is
//! a range and nothing is ever copied from level to level. Offsets are 32 bits wide: `[1,1,…]`
//! costs a node per two bytes of input, and a node is 12 bytes.

use std::ops::Range;

use super::pointer::Pointer;

/// An index into the nodes, the order, the text or the body.
pub(super) type NodeIndex = u32;

/// What a node is, and which list its range points into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeKind {
    /// Canonical as it stands in the body: a literal or a plain integer.
    Plain,
    /// A string without escapes, the range being what is between the quotes in the body.
    String,
    /// A number in canonical form, in the text.
    Number,
    /// A string that had escapes, in the text, unescaped.
    Unescaped,
    /// An array: `end` is the index of the node after its last element.
    Array,
    /// An object: as an array, and `start` is where its sorted names begin in the order.
    Object,
}

/// One value or one member name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub(super) kind: NodeKind,
    /// Whether a pointer says that this value does not count.
    pub(super) removed: bool,
    pub(super) start: NodeIndex,
    pub(super) end: NodeIndex,
}

/// A parsed document.
#[derive(Debug)]
pub(super) struct Tree<'a> {
    pub(super) body: &'a [u8],
    pub(super) nodes: Vec<Node>,
    /// For each object: the number of its members, then the nodes of their names, sorted.
    pub(super) order: Vec<NodeIndex>,
    /// Strings that had escapes, unescaped (lone surrogates as three bytes), and numbers.
    pub(super) text: Vec<u8>,
}

impl Tree<'_> {
    pub(super) fn node(&self, index: NodeIndex) -> Option<Node> {
        self.nodes.get(wide(index)).copied()
    }

    /// The name at a node and its value.
    pub(super) fn member(&self, name: NodeIndex) -> Option<&[Node; 2]> {
        self.nodes.get(wide(name)..)?.first_chunk()
    }

    /// The node after the subtree of a node.
    pub(super) fn after(&self, index: NodeIndex) -> NodeIndex {
        match self.node(index) {
            Some(Node { kind: NodeKind::Array | NodeKind::Object, end, .. }) => end,
            _ => next(index),
        }
    }

    /// The unescaped bytes of a string, or the canonical text of another scalar.
    pub(super) fn bytes(&self, node: Node) -> &[u8] {
        let range = wide_range(node.start..node.end);
        match node.kind {
            NodeKind::Plain | NodeKind::String => self.body.get(range),
            NodeKind::Number | NodeKind::Unescaped => self.text.get(range),
            NodeKind::Array | NodeKind::Object => None,
        }
        .unwrap_or_default()
    }

    /// The unescaped bytes of the member name at a node.
    pub(super) fn name(&self, index: NodeIndex) -> &[u8] {
        self.node(index).map_or(&[], |node| self.bytes(node))
    }

    /// The nodes of an object's names, sorted.
    pub(super) fn names(&self, object: Node) -> &[NodeIndex] {
        let count = self.order.get(wide(object.start)).copied().unwrap_or_default();
        let first = next(object.start);
        self.order.get(wide_range(first..first.saturating_add(count))).unwrap_or_default()
    }

    /// The node that a pointer leads to.
    pub(super) fn find(&self, pointer: &Pointer) -> Option<NodeIndex> {
        pointer.tokens().try_fold(0, |index, token| self.child(index, token))
    }

    /// Marks what a pointer leads to as not counting.
    pub(super) fn remove(&mut self, pointer: &Pointer) {
        let found = self.find(pointer);
        if let Some(node) = found.and_then(|index| self.nodes.get_mut(wide(index))) {
            node.removed = true;
        }
    }

    fn child(&self, index: NodeIndex, token: &str) -> Option<NodeIndex> {
        let node = self.node(index)?;
        match node.kind {
            NodeKind::Object => {
                let names = self.names(node);
                let found = names.binary_search_by_key(&token.as_bytes(), |name| self.name(*name));
                names.get(found.ok()?).map(|name| next(*name))
            }
            NodeKind::Array => {
                let mut element = next(index);
                for _ in 0..array_index(token)? {
                    if element >= node.end {
                        return None;
                    }
                    element = self.after(element);
                }
                (element < node.end).then_some(element)
            }
            NodeKind::Plain | NodeKind::String | NodeKind::Number | NodeKind::Unescaped => None,
        }
    }
}

/// An array index of RFC 6901: digits without leading zeros. `-` is the element after the last,
/// which is never there.
fn array_index(token: &str) -> Option<NodeIndex> {
    let plain = token == "0" || token.starts_with(|first: char| matches!(first, '1'..='9'));
    plain.then(|| token.parse().ok()).flatten()
}

/// The index as one for a slice.
pub(super) fn wide(index: NodeIndex) -> usize {
    usize::try_from(index).unwrap_or(usize::MAX)
}

pub(super) fn wide_range(range: Range<NodeIndex>) -> Range<usize> {
    wide(range.start)..wide(range.end)
}

/// The index of the next node.
pub(super) fn next(index: NodeIndex) -> NodeIndex {
    index.saturating_add(1)
}
