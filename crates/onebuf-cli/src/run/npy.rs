//! The header of a NumPy `.npy` file, read strictly and written.
//!
//! The format is that of NumPy's `numpy/lib/format.py`: a magic, a version, a length, and a Python dictionary in text.
//! The crates that read it (npyz, ndarray-npy) copy the elements into vectors of their own, reserve whatever length a
//! header claims, and parse the dictionary with a recursive grammar, which a header of brackets drives off the stack. Here
//! the elements go straight into a buffer's memory, so only the header is of interest, and files may come from
//! anywhere. Hence this parser: no recursion, no reservation past 64 KiB, and nothing accepted but what a kernel can take.

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use onebuf::Scalar;

/// Element types that a file may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DType {
    F2,
    F4,
    I4,
    U4,
    I8,
    U8,
    U1,
}

impl DType {
    /// Every type.
    pub(crate) const ALL: [DType; 7] =
        [DType::F2, DType::F4, DType::I4, DType::U4, DType::I8, DType::U8, DType::U1];

    /// NumPy's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            DType::F2 => "f2",
            DType::F4 => "f4",
            DType::I4 => "i4",
            DType::U4 => "u4",
            DType::I8 => "i8",
            DType::U8 => "u8",
            DType::U1 => "u1",
        }
    }

    /// Size of an element in bytes.
    pub(crate) fn bytes(self) -> u64 {
        u64::from(self.scalar().size_bytes())
    }

    /// The scalar that it is in a kernel.
    pub(crate) fn scalar(self) -> Scalar {
        match self {
            DType::F2 => Scalar::F16,
            DType::F4 => Scalar::F32,
            DType::I4 => Scalar::I32,
            DType::U4 => Scalar::U32,
            DType::I8 => Scalar::I64,
            DType::U8 => Scalar::U64,
            DType::U1 => Scalar::U8,
        }
    }

    /// As NumPy writes it: with the byte order, where there is one.
    fn descr(self) -> String {
        let order = if self == DType::U1 { '|' } else { '<' };
        format!("{order}{}", self.name())
    }

    fn list() -> String {
        DType::ALL.map(DType::name).join(" ")
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = String;

    fn from_str(name: &str) -> Result<DType, String> {
        DType::ALL
            .into_iter()
            .find(|dtype| dtype.name() == name)
            .ok_or_else(|| format!("`{name}` is no element type; there are: {}", DType::list()))
    }
}

/// A shape, the slowest dimension first. It may have none: one element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape(pub(crate) Vec<u64>);

/// NumPy allows this many.
const MOST_DIMENSIONS: usize = 64;

impl Shape {
    /// Size in bytes with elements of this type; `None` where 64 bits cannot count it.
    pub(crate) fn bytes(&self, dtype: DType) -> Option<u64> {
        // A zero makes the array empty, whatever the other dimensions are.
        if self.0.contains(&0) {
            return Some(0);
        }
        self.0.iter().try_fold(dtype.bytes(), |bytes, &dimension| bytes.checked_mul(dimension))
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [one] => write!(f, "({one},)"),
            all => {
                let all: Vec<String> = all.iter().map(u64::to_string).collect();
                write!(f, "({})", all.join(", "))
            }
        }
    }
}

impl FromStr for Shape {
    type Err = String;

    /// Dimensions with commas between them: `1024`, `480,640`.
    fn from_str(text: &str) -> Result<Shape, String> {
        let dimensions: Result<Vec<u64>, String> = text
            .split(',')
            .map(|dimension| {
                let digits = !dimension.is_empty() && dimension.bytes().all(|b| b.is_ascii_digit());
                let number = dimension.parse().ok().filter(|_| digits);
                number.ok_or_else(|| format!("`{text}` is no shape; a shape is 1024 or 480,640"))
            })
            .collect();
        let shape = Shape(dimensions?);
        if shape.0.len() > MOST_DIMENSIONS {
            return Err(format!("a shape has at most {MOST_DIMENSIONS} dimensions"));
        }
        Ok(shape)
    }
}

/// What a header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) dtype: DType,
    pub(crate) shape: Shape,
    /// Where the elements begin in the file.
    pub(crate) data_offset: u64,
}

/// What is wrong with a header.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadHeader {
    #[error("it is no .npy file: it does not begin with \\x93NUMPY")]
    Magic,
    #[error("it is cut within the header")]
    Cut,
    #[error("its format version is {0}.{1}; versions 1.0, 2.0 and 3.0 can be read")]
    Version(u8, u8),
    #[error("its header is said to have {0} bytes; at most {MOST_HEADER_BYTES} are read")]
    Long(u64),
    #[error("its header is not understood at byte {at}: {problem}")]
    Syntax { at: usize, problem: &'static str },
    #[error("its header has no `{0}`")]
    Missing(&'static str),
    #[error("its elements are `{0}`, big-endian; save it little-endian: a.astype(a.dtype.newbyteorder('<'))")]
    BigEndian(String),
    #[error("it holds Python objects, which no kernel can read; save plain numbers")]
    Objects,
    #[error("it holds records of several fields; save each field as an array of its own")]
    Records,
    #[error("its elements are `{0}`; kernels take {list}: convert with a.astype('f4')", list = DType::list())]
    Type(String),
    #[error("it is in Fortran order; save numpy.ascontiguousarray(a)")]
    Fortran,
    #[error("its shape {0} has more bytes than 64 bits can count")]
    Huge(String),
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
}

const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// NumPy itself writes a few hundred bytes, and refuses to read more than 10,000 unless it is told to trust the file.
const MOST_HEADER_BYTES: u64 = 65_535;

impl Header {
    /// Reads a header from the start of a file, and no byte more.
    pub(crate) fn read(file: &mut impl Read) -> Result<Header, BadHeader> {
        let mut magic = [0; 6];
        if fill(file, &mut magic)? < magic.len() || magic != *MAGIC {
            return Err(BadHeader::Magic);
        }
        let [major, minor] = exact(file)?;
        let (length, before): (u64, u64) = match (major, minor) {
            (1, 0) => (u16::from_le_bytes(exact(file)?).into(), 10),
            (2 | 3, 0) => (u32::from_le_bytes(exact(file)?).into(), 12),
            _ => return Err(BadHeader::Version(major, minor)),
        };
        if length > MOST_HEADER_BYTES {
            return Err(BadHeader::Long(length));
        }
        let mut text = vec![0; length as usize];
        if fill(file, &mut text)? < text.len() {
            return Err(BadHeader::Cut);
        }
        let (dtype, shape) = Dictionary::parse(&text)?;
        if shape.bytes(dtype).is_none() {
            return Err(BadHeader::Huge(shape.to_string()));
        }
        Ok(Header { dtype, shape, data_offset: before + length })
    }

    /// The bytes of a header of version 1.0, whose elements begin at a multiple of 64.
    pub(crate) fn write(dtype: DType, shape: &Shape) -> Vec<u8> {
        let mut text =
            format!("{{'descr': '{}', 'fortran_order': False, 'shape': {shape}, }}", dtype.descr());
        let before = MAGIC.len() + 4;
        let length = (before + text.len() + 1).next_multiple_of(64) - before;
        text.extend(std::iter::repeat_n(' ', length - 1 - text.len()));
        text.push('\n');
        let mut bytes = MAGIC.to_vec();
        bytes.extend([1, 0]);
        // 64 dimensions of 20 digits are far from the limit of 16 bits.
        bytes.extend((length as u16).to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes
    }
}

/// Reads until `target` is full or the file ends. The number of bytes read.
fn fill(file: &mut impl Read, target: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < target.len() {
        match file.read(&mut target[done..]) {
            Ok(0) => break,
            Ok(more) => done += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

fn exact<const N: usize>(file: &mut impl Read) -> Result<[u8; N], BadHeader> {
    let mut bytes = [0; N];
    if fill(file, &mut bytes)? < N {
        return Err(BadHeader::Cut);
    }
    Ok(bytes)
}

/// The Python dictionary of a header: three known keys in any order, each once.
struct Dictionary<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Dictionary<'a> {
    fn parse(text: &'a [u8]) -> Result<(DType, Shape), BadHeader> {
        let mut parser = Dictionary { text, at: 0 };
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        parser.expect(b'{', "a dictionary must begin with `{`")?;
        while !parser.take(b'}') {
            let start = parser.at;
            let key = parser.string()?;
            parser.expect(b':', "`:` must follow a key")?;
            let fresh = match key {
                b"descr" => descr.replace(parser.descr()?).is_none(),
                b"fortran_order" => fortran.replace(parser.boolean()?).is_none(),
                b"shape" => shape.replace(parser.shape()?).is_none(),
                _ => return Err(BadHeader::Syntax { at: start, problem: "an unknown key" }),
            };
            if !fresh {
                return Err(BadHeader::Syntax { at: start, problem: "a key that is there twice" });
            }
            if !parser.take(b',') {
                parser.expect(b'}', "`,` or `}` must follow a value")?;
                break;
            }
        }
        parser.blanks();
        if parser.at < text.len() {
            return Err(parser.error("something follows the dictionary"));
        }
        let descr = descr.ok_or(BadHeader::Missing("descr"))?;
        let fortran = fortran.ok_or(BadHeader::Missing("fortran_order"))?;
        let shape: Shape = shape.ok_or(BadHeader::Missing("shape"))?;
        // In one dimension, and in none, both orders are the same.
        if fortran && shape.0.len() > 1 {
            return Err(BadHeader::Fortran);
        }
        Ok((descr, shape))
    }

    fn error(&self, problem: &'static str) -> BadHeader {
        BadHeader::Syntax { at: self.at, problem }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\t' | b'\r')) {
            self.at += 1;
        }
    }

    /// Skips blanks, and `byte` where it comes next.
    fn take(&mut self, byte: u8) -> bool {
        self.blanks();
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    fn expect(&mut self, byte: u8, problem: &'static str) -> Result<(), BadHeader> {
        if self.take(byte) { Ok(()) } else { Err(self.error(problem)) }
    }

    /// A string without escapes, which no key and no type that is accepted needs.
    fn string(&mut self) -> Result<&'a [u8], BadHeader> {
        self.blanks();
        let quote = match self.peek() {
            Some(quote @ (b'\'' | b'"')) => quote,
            _ => return Err(self.error("a string must begin with a quotation mark")),
        };
        let start = self.at + 1;
        let rest = &self.text[start..];
        let length =
            rest.iter().position(|&b| b == quote).ok_or_else(|| self.error("a string has no end"))?;
        self.at = start + length + 1;
        Ok(&rest[..length])
    }

    fn descr(&mut self) -> Result<DType, BadHeader> {
        self.blanks();
        if self.peek() == Some(b'[') {
            return Err(BadHeader::Records);
        }
        let text = String::from_utf8_lossy(self.string()?).into_owned();
        let (order, name) = match text.as_bytes() {
            [order @ (b'<' | b'>' | b'|' | b'='), ..] => (Some(*order), &text[1..]),
            _ => (None, text.as_str()),
        };
        if name.starts_with('O') {
            return Err(BadHeader::Objects);
        }
        let Ok(dtype) = name.parse::<DType>() else { return Err(BadHeader::Type(shorten(&text))) };
        match order {
            Some(b'>') if dtype != DType::U1 => Err(BadHeader::BigEndian(text)),
            // Files say `<` or `|`; `=` and nothing mean the machine's order, which a file has not.
            Some(b'<' | b'>') => Ok(dtype),
            Some(b'|') if dtype == DType::U1 => Ok(dtype),
            _ => Err(BadHeader::Type(text)),
        }
    }

    fn boolean(&mut self) -> Result<bool, BadHeader> {
        self.blanks();
        for (word, value) in [(b"True".as_slice(), true), (b"False".as_slice(), false)] {
            if self.text[self.at..].starts_with(word) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err(self.error("`True` or `False` is wanted"))
    }

    fn shape(&mut self) -> Result<Shape, BadHeader> {
        self.expect(b'(', "a shape must begin with `(`")?;
        let mut dimensions = Vec::new();
        let mut comma = true;
        while !self.take(b')') {
            if !comma {
                return Err(self.error("`,` or `)` must follow a dimension"));
            }
            if dimensions.len() == MOST_DIMENSIONS {
                return Err(self.error("a shape has at most 64 dimensions"));
            }
            dimensions.push(self.number()?);
            comma = self.take(b',');
        }
        // `(3)` is a number in Python, and `(3,)` a shape.
        if dimensions.len() == 1 && !comma {
            return Err(self.error("a shape of one dimension needs a comma"));
        }
        Ok(Shape(dimensions))
    }

    fn number(&mut self) -> Result<u64, BadHeader> {
        self.blanks();
        let digits = self.text[self.at..].iter().take_while(|b| b.is_ascii_digit()).count();
        if digits == 0 {
            return Err(self.error("a dimension must be a whole number, and not negative"));
        }
        let mut value: u64 = 0;
        for &digit in &self.text[self.at..self.at + digits] {
            let next = value.checked_mul(10).and_then(|v| v.checked_add(u64::from(digit - b'0')));
            value = next.ok_or_else(|| self.error("a dimension is past 64 bits"))?;
        }
        self.at += digits;
        Ok(value)
    }
}

/// A text of a file, for a message.
fn shorten(text: &str) -> String {
    let short: String = text.chars().filter(|c| !c.is_control()).take(40).collect();
    if short.len() < text.len() { format!("{short}…") } else { short }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(dictionary: &str) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([1, 0]);
        bytes.extend((dictionary.len() as u16).to_le_bytes());
        bytes.extend(dictionary.as_bytes());
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Header, BadHeader> {
        Header::read(&mut &bytes[..])
    }

    fn message(bytes: &[u8]) -> String {
        read(bytes).unwrap_err().to_string()
    }

    #[test]
    fn what_numpy_writes_is_read() {
        // numpy.save of numpy.zeros((3, 4), "f4"), byte for byte.
        let mut numpy = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
        let text = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }";
        numpy.extend(format!("{text:117}\n").as_bytes());
        let header = Header { dtype: DType::F4, shape: Shape(vec![3, 4]), data_offset: 128 };
        assert_eq!(read(&numpy).unwrap(), header);
        assert_eq!(Header::write(DType::F4, &header.shape), numpy);

        let scalar = read(&file("{'descr': '|u1', 'fortran_order': True, 'shape': ()}")).unwrap();
        assert_eq!((scalar.dtype, scalar.shape.bytes(scalar.dtype)), (DType::U1, Some(1)));
        let other = read(&file("{\"shape\":(7,),'fortran_order':False,'descr':'<u8'}  \n")).unwrap();
        assert_eq!((other.dtype, other.shape), (DType::U8, Shape(vec![7])));
    }

    #[test]
    fn each_refusal_says_what_to_do() {
        let with = |descr: &str, order: &str, shape: &str| {
            message(&file(&format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n")))
        };
        assert!(with("'>f4'", "False", "(3,)").contains("newbyteorder"));
        assert!(with("'|O'", "False", "(3,)").contains("objects"));
        assert!(with("[('a', '<f4')]", "False", "(3,)").contains("records"));
        assert!(with("'<f8'", "False", "(3,)").contains("astype"));
        assert!(with("'<U7'", "False", "(3,)").contains("`<U7`"));
        assert!(with("'f4'", "False", "(3,)").contains("`f4`"));
        assert!(with("'<f4'", "True", "(3, 4)").contains("ascontiguousarray"));
        assert!(with("'<f4'", "False", "(4294967296, 4294967296)").contains("64 bits"));
        assert!(with("'<f4'", "False", "(99999999999999999999999,)").contains("64 bits"));
        assert!(with("'<f4'", "False", "(-1,)").contains("not negative"));
        assert!(with("'<f4'", "False", "(3)").contains("comma"));
        assert!(with("'<f4'", "False", "(3 4)").contains("must follow"));
        assert!(with("'<f4'", "maybe", "(3,)").contains("`True` or `False`"));
        assert!(with("'<f4'", "False", &format!("({})", "1,".repeat(65))).contains("64 dimensions"));
        assert!(message(&file("{'descr': '<f4")).contains("a string has no end"));
        assert!(message(&file("{'descr': '<f4', 'fortran_order': False}")).contains("no `shape`"));
        assert!(message(&file("{'descr': '<f4', 'descr': '<f4'}")).contains("twice"));
        assert!(message(&file("{'name': '<f4'}")).contains("unknown key"));
        assert!(message(&file("{} x")).contains("follows the dictionary"));
        assert!(message(&file(&"[".repeat(60_000))).contains("`{`"));
        assert!(message(b"PK\x03\x04zip").contains("no .npy file"));
        assert!(message(b"\x93NUM").contains("no .npy file"));
        assert!(message(b"\x93NUMPY\x04\x00\x00\x00").contains("4.0"));
        assert!(message(b"\x93NUMPY\x01\x00\x76").contains("cut"));
        assert!(message(b"\x93NUMPY\x02\x00\xff\xff\xff\xff").contains("4294967295 bytes"));
    }

    #[test]
    fn an_empty_array_has_no_bytes_however_long_the_rest_is() {
        assert_eq!(Shape(vec![0, u64::MAX, u64::MAX]).bytes(DType::F4), Some(0));
        assert_eq!(Shape(vec![u64::MAX]).bytes(DType::F4), None);
        assert_eq!(Shape(vec![]).bytes(DType::I8), Some(8));
    }

    #[test]
    fn shapes_are_written_with_commas() {
        assert_eq!("480,640".parse::<Shape>().unwrap(), Shape(vec![480, 640]));
        for bad in ["", ",", "3,", "3x4", "+3", "-3", "99999999999999999999", "3, 4"] {
            assert!(bad.parse::<Shape>().is_err(), "{bad}");
        }
    }

    fn dtypes() -> impl Strategy<Value = DType> {
        prop::sample::select(DType::ALL.as_slice())
    }

    proptest! {
        #[test]
        fn headers_round_trip(dtype in dtypes(), shape in prop::collection::vec(0u64..1 << 40, 0..6)) {
            let shape = Shape(shape);
            let bytes = Header::write(dtype, &shape);
            prop_assert_eq!(bytes.len() % 64, 0);
            let read = read(&bytes);
            if shape.bytes(dtype).is_some() {
                let header = Header { dtype, shape, data_offset: bytes.len() as u64 };
                prop_assert_eq!(read.unwrap(), header);
            } else {
                prop_assert!(matches!(read, Err(BadHeader::Huge(_))));
            }
        }

        #[test]
        fn mutated_headers_give_an_answer(
            dtype in dtypes(),
            shape in prop::collection::vec(0u64..100_000, 0..5),
            edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = Header::write(dtype, &Shape(shape));
            for (index, byte) in edits {
                let at = index.index(bytes.len());
                bytes[at] = byte;
            }
            if let Err(error) = read(&bytes) {
                prop_assert!(!error.to_string().is_empty());
            }
            let cut = cut.index(bytes.len());
            prop_assert!(read(&bytes[..cut]).is_err() || cut >= 128);
        }

        #[test]
        fn any_bytes_give_an_answer(tail in prop::collection::vec(any::<u8>(), 0..300), version in 0u8..5) {
            let mut bytes = MAGIC.to_vec();
            bytes.extend([version, 0]);
            bytes.extend(&tail);
            let _ = read(&bytes);
            let text: String = tail.iter().map(|b| char::from(b % 96 + 32)).collect();
            let _ = read(&file(&text));
        }
    }
}
