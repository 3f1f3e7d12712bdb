// The published vectors: NIST's of FIPS 180-4, and those of RFC 4231.
#include "runtime/launch/sha256.h"

#include <gtest/gtest.h>

namespace capstan {
namespace {

std::string Hex(const Digest& digest) { return ToHex(AsText(digest)); }

TEST(Sha256Test, Vectors) {
  EXPECT_EQ(Hex(Sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Hex(Sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Hex(Sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(Hex(Sha256(std::string(1000000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(HmacSha256Test, Vectors) {
  EXPECT_EQ(Hex(HmacSha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(Hex(HmacSha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(Hex(HmacSha256(std::string(20, '\xaa'), std::string(50, '\xdd'))),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(Hex(HmacSha256(std::string(131, '\xaa'),
                           "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Sha256Test, EveryLengthAroundABlockHashesDifferently) {
  std::string previous;
  for (size_t n = 50; n < 70; ++n) {
    const std::string digest = Hex(Sha256(std::string(n, 'x')));
    EXPECT_NE(digest, previous);
    previous = digest;
  }
}

TEST(DigestTest, ComparesAllBytes) {
  const Digest digest = Sha256("x");
  EXPECT_TRUE(SameDigest(digest, digest));
  for (size_t i = 0; i < digest.size(); ++i) {
    Digest other = digest;
    other[i] ^= 1;
    EXPECT_FALSE(SameDigest(digest, other));
  }
}

TEST(RandomBytesTest, AreNotTheSameTwice) {
  const absl::StatusOr<Digest> a = RandomBytes(), b = RandomBytes();
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_FALSE(SameDigest(*a, *b));
}

}  // namespace
}  // namespace capstan
