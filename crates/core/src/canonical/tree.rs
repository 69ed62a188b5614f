//! A parsed document as one flat list of nodes.
//!
//! Nodes are in document order, a container before its contents, so a subtree is a range of the
//! list. Offsets have 32 bits, because `[1,1,…]` needs one node for two bytes of input, and a node
//! has 12 bytes.

use std::ops::Range;

use super::pointer::Pointer;

/// An index into `nodes`, `order`, `text` or `body` of the [`Tree`].
pub(super) type NodeIndex = u32;

/// The kind of a node. It decides which list the node's range indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeKind {
    /// A literal or a plain integer, canonical already; a range of the body.
    Plain,
    /// A string without escapes; the range of the body between the quotes.
    String,
    /// A number in canonical form; a range of the text.
    Number,
    /// An unescaped string; a range of the text.
    Unescaped,
    /// An array: `end` is the index of the node after its last element.
    Array,
    /// An object: `end` as for an array; `start` is the index of its sorted names in `order`.
    Object,
}

/// One value or one member name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub(super) kind: NodeKind,
    /// Whether the value is excluded from the canonical text.
    pub(super) is_removed: bool,
    pub(super) start: NodeIndex,
    pub(super) end: NodeIndex,
}

/// A parsed document.
#[derive(Debug)]
pub(super) struct Tree<'a> {
    pub(super) body: &'a [u8],
    pub(super) nodes: Vec<Node>,
    /// For each object: the number of members, then the nodes of their names, sorted.
    pub(super) order: Vec<NodeIndex>,
    /// Unescaped strings (lone surrogates as three bytes) and canonical numbers.
    pub(super) text: Vec<u8>,
}

impl Tree<'_> {
    pub(super) fn node(&self, index: NodeIndex) -> Option<Node> {
        self.nodes.get(wide(index)).copied()
    }

    /// The member name at a node, and its value.
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

    /// The node that a pointer selects.
    pub(super) fn find(&self, pointer: &Pointer) -> Option<NodeIndex> {
        pointer.tokens().try_fold(0, |index, token| self.child(index, token))
    }

    /// Excludes the value at a pointer from the canonical text.
    pub(super) fn remove(&mut self, pointer: &Pointer) {
        let found = self.find(pointer);
        if let Some(node) = found.and_then(|index| self.nodes.get_mut(wide(index))) {
            node.is_removed = true;
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

/// Parses an array index of RFC 6901: digits without leading zeros. `-` names the element after the
/// last one, which never exists.
fn array_index(token: &str) -> Option<NodeIndex> {
    let plain = token == "0" || token.starts_with(|first: char| matches!(first, '1'..='9'));
    plain.then(|| token.parse().ok()).flatten()
}

/// Converts to a slice index.
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
