/*
 * CRC-32 (polynomial 0x04c11db7, reflected) eight bytes at a time by tables, or 64 or 256 by carry-less multiplication.
 */
#include "roce/icrc.h"

#include <pthread.h>
#include <string.h>

#include "roce/packet.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define POLYNOMIAL 0xedb88320u
enum {
	BACKWARDS = 16,  /* powers of two: more than the bytes of a packet */
	UNNUMBERED = 21, /* bytes of the pseudo header behind the identification and fragment fields */
};

static uint32_t tables[8][256];
static uint32_t backwards[BACKWARDS]; /* x^-8, repeatedly squared */
static uint32_t numbers[2][256];      /* effect of each identification byte on the pseudo header's register */
static uint32_t fragments;            /* the same for a cleared "don't fragment" */
static pthread_once_t once = PTHREAD_ONCE_INIT;
#if defined(__x86_64__)
static bool multiplies, multiplies_wide;
#endif

static uint32_t multiply(uint32_t a, uint32_t b);
static uint32_t by_tables(uint32_t crc, const uint8_t *at, size_t size);

static void prepare(void)
{
	for (uint32_t n = 0; n < 256; n++) {
		uint32_t crc = n;
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
		tables[0][n] = crc;
	}
	for (uint32_t n = 0; n < 256; n++)
		for (int t = 1; t < 8; t++)
			tables[t][n] = tables[t - 1][n] >> 8 ^ tables[0][tables[t - 1][n] & 0xff];
	/* x^(2^32 - 1) is 1, as the polynomial is primitive: x^-8 is x^(2^32 - 9), by squaring. */
	backwards[0] = UINT32_C(1) << 31;
	for (uint32_t exponent = UINT32_MAX - 8, power = UINT32_C(1) << 30; exponent; exponent >>= 1) {
		if (exponent & 1)
			backwards[0] = multiply(backwards[0], power);
		power = multiply(power, power);
	}
	for (unsigned i = 1; i < BACKWARDS; i++)
		backwards[i] = multiply(backwards[i - 1], backwards[i - 1]);
	/* Registers add up: a changed byte has the same effect whatever the other bytes are. */
	for (unsigned n = 0; n < 256; n++) {
		const uint8_t byte[UNNUMBERED + 3] = { (uint8_t)n };
		numbers[0][n] = by_tables(0, byte, UNNUMBERED + 3);
		numbers[1][n] = by_tables(0, byte, UNNUMBERED + 2);
		if (n == 0x40)
			fragments = by_tables(0, byte, UNNUMBERED + 1);
	}
#if defined(__x86_64__)
	multiplies = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
	multiplies_wide = multiplies && __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx512f");
#endif
}

static uint32_t little32(const uint8_t *at)
{
	return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/*
 * Keep the loop within one page of code. An emulated CPU, which may have nothing better than tables, looks up the
 * target of each jump to another page. When the loop came to lie across two pages, a packet of 4 KiB took 18 us there
 * instead of 8.
 */
enum { ON_ONE_PAGE = 512 };

__attribute__((noinline, aligned(ON_ONE_PAGE))) static uint32_t by_tables(uint32_t crc, const uint8_t *at, size_t size)
{
	for (; size >= 8; size -= 8, at += 8) {
		uint32_t low = crc ^ little32(at), high = little32(at + 4);
		crc = tables[7][low & 0xff] ^ tables[6][low >> 8 & 0xff] ^ tables[5][low >> 16 & 0xff] ^
		      tables[4][low >> 24] ^ tables[3][high & 0xff] ^ tables[2][high >> 8 & 0xff] ^
		      tables[1][high >> 16 & 0xff] ^ tables[0][high >> 24];
	}
	if (size >= 4) {
		const uint32_t low = crc ^ little32(at);
		crc = tables[3][low & 0xff] ^ tables[2][low >> 8 & 0xff] ^ tables[1][low >> 16 & 0xff] ^
		      tables[0][low >> 24];
		size -= 4;
		at += 4;
	}
	while (size--)
		crc = crc >> 8 ^ tables[0][(crc ^ *at++) & 0xff];
	return crc;
}

uint32_t roce_crc_tables(uint32_t crc, const void *bytes, size_t size)
{
	pthread_once(&once, prepare);
	return by_tables(crc, bytes, size);
}

#if defined(__x86_64__)
/*
 * A block of 128 bits that lies d bits further from the end than another contributes x^d times itself. Each half
 * is multiplied by x^(d+64) or x^d modulo the polynomial, which keeps the product within 128 bits: "folding"
 * (Gopal and others, Intel 2009). Constants: those powers, bit-reflected and shifted by one, for d = 512 and 128.
 */
enum { FOLD = 64, LANE = 16 };

#define FOLDED(x, by, next)                                                                                            \
	_mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, by, 0x00), _mm_clmulepi64_si128(x, by, 0x11)), next)
#define LOADED(at) _mm_loadu_si128((const __m128i *)(const void *)(at))

/* The lanes hold everything before `at`. */
__attribute__((target("pclmul,sse4.1"))) static uint32_t fold(__m128i lane[FOLD / LANE], const uint8_t *at, size_t size)
{
	const __m128i by512 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
	const __m128i by128 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
	uint8_t rest[LANE];

	for (; size >= FOLD; at += FOLD, size -= FOLD)
		for (int i = 0; i < FOLD / LANE; i++)
			lane[i] = FOLDED(lane[i], by512, LOADED(at + i * LANE));
	for (int i = 1; i < FOLD / LANE; i++)
		lane[i] = FOLDED(lane[i - 1], by128, lane[i]);
	for (; size >= LANE; at += LANE, size -= LANE)
		lane[3] = FOLDED(lane[3], by128, LOADED(at));
	/* The rest is a message of sixteen bytes with the same CRC. */
	_mm_storeu_si128((__m128i *)(void *)rest, lane[3]);
	return by_tables(by_tables(0, rest, sizeof(rest)), at, size);
}

__attribute__((target("pclmul,sse4.1"))) static uint32_t by_multiplying(uint32_t crc, const uint8_t *at, size_t size)
{
	__m128i lane[FOLD / LANE];

	for (int i = 0; i < FOLD / LANE; i++)
		lane[i] = LOADED(at + i * LANE);
	lane[0] = _mm_xor_si128(lane[0], _mm_cvtsi32_si128((int)crc));
	return fold(lane, at + FOLD, size - FOLD);
}

/* The same with registers of four lanes, four of them; d = 2048. */
enum { WIDE = 4 * FOLD };

#define WIDE_FOLDED(x, by, next)                                                                                       \
	_mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(x, by, 0x00), _mm512_clmulepi64_epi128(x, by, 0x11), next,  \
				  0x96)
#define WIDE_LOADED(at) _mm512_loadu_si512((const void *)(at))

__attribute__((target("vpclmulqdq,avx512f,pclmul,sse4.1"))) static uint32_t
by_multiplying_wide(uint32_t crc, const uint8_t *at, size_t size)
{
	const __m512i by2048 = _mm512_broadcast_i32x4(_mm_set_epi64x(0x1322d1430, 0x11542778a));
	const __m512i by512 = _mm512_broadcast_i32x4(_mm_set_epi64x(0x1c6e41596, 0x154442bd4));
	__m512i four[4];
	__m128i lane[FOLD / LANE];

	for (int i = 0; i < 4; i++)
		four[i] = WIDE_LOADED(at + i * FOLD);
	four[0] = _mm512_xor_si512(four[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
	for (at += WIDE, size -= WIDE; size >= WIDE; at += WIDE, size -= WIDE)
		for (int i = 0; i < 4; i++)
			four[i] = WIDE_FOLDED(four[i], by2048, WIDE_LOADED(at + i * FOLD));
	for (int i = 1; i < 4; i++)
		four[i] = WIDE_FOLDED(four[i - 1], by512, four[i]);
	_mm512_storeu_si512(lane, four[3]);
	/* gcc 12 does this by itself at -O3 only. As long as the upper parts hold anything, code that knows registers of
	 * 128 bits only runs several times slower, here and in the program: 1 KiB took 300 ns, and takes 55. */
	_mm256_zeroupper();
	return fold(lane, at, size);
}
#endif

uint32_t roce_crc(uint32_t crc, const void *bytes, size_t size)
{
	pthread_once(&once, prepare);
#if defined(__x86_64__)
	if (size >= 2 * WIDE && multiplies_wide)
		return by_multiplying_wide(crc, bytes, size);
	if (size >= 2 * FOLD && multiplies)
		return by_multiplying(crc, bytes, size);
#endif
	return by_tables(crc, bytes, size);
}

/* ---- backwards --------------------------------------------------------------------------------------- */

/*
 * Registers are polynomials modulo that of the CRC, with the highest power in the lowest bit; appending a zero byte
 * multiplies by x^8. So multiplying with the inverse removes bytes, and a product of its powers removes any number of
 * them.
 */
static uint32_t times_x(uint32_t a)
{
	return a >> 1 ^ (POLYNOMIAL & -(a & 1));
}

static uint32_t multiply(uint32_t a, uint32_t b)
{
	uint32_t product = 0;

	for (; a; a <<= 1, b = times_x(b))
		product ^= b & -(a >> 31);
	return product;
}

/*
 * The register before that many zero bytes. Uses tables of products, four bits at a time. Consecutive packets have few
 * sizes, so the tables are kept.
 */
static uint32_t before(uint32_t crc, size_t zeros)
{
	enum { SIZES = 16, STEP = 4, NIBBLES = 8 };
	static _Thread_local struct {
		size_t zeros;
		uint32_t product[NIBBLES][16];
	} known[SIZES];
	const unsigned at = zeros / STEP % SIZES;
	uint32_t(*product)[16] = known[at].product, sum = 0;

	if (known[at].zeros != zeros) {
		uint32_t by = UINT32_C(1) << 31;
		for (size_t i = 0, left = zeros; left; i++, left >>= 1)
			if (left & 1)
				by = multiply(by, backwards[i]);
		known[at].zeros = zeros;
		for (int bit = 31; bit >= 0; bit--, by = times_x(by))
			product[bit / 4][1 << bit % 4] = by;
		for (int i = 0; i < NIBBLES; i++)
			for (unsigned n = 3; n < 16; n++)
				if (n & (n - 1))
					product[i][n] = product[i][n & (n - 1)] ^ product[i][n & -n];
	}
	for (int i = 0; i < NIBBLES; i++)
		sum ^= product[i][crc >> 4 * i & 15];
	return sum;
}

/* ---- RoCEv2 ----------------------------------------------------------------------------------------- */

static uint8_t *put16(uint8_t *to, uint32_t value)
{
	to[0] = (uint8_t)(value >> 8);
	to[1] = (uint8_t)value;
	return to + 2;
}

/*
 * With identification 0 and "don't fragment". All fields that may change on the way are ones: eight bytes for the local
 * route header, traffic class, hop limit ...
 */
static size_t pseudo(const struct roce_path *path, size_t udp_length, uint8_t to[64])
{
	uint8_t *at = to;

	memset(to, 0xff, 64);
	at += 8;
	if (soft_gid_is_ipv4(path->src)) {
		at[0] = 0x45;
		put16(at + 2, (uint32_t)udp_length + 20);
		put16(at + 4, 0);
		put16(at + 6, 0x4000);
		at[9] = 17; /* UDP */
		memcpy(at + 12, path->src + 12, 4);
		memcpy(at + 16, path->dst + 12, 4);
		at += 20;
	} else {
		at[0] = 0x6f;
		put16(at + 4, (uint32_t)udp_length);
		at[6] = 17;
		memcpy(at + 8, path->src, 16);
		memcpy(at + 24, path->dst, 16);
		at += 40;
	}
	at = put16(put16(put16(at, path->src_port), path->dst_port), (uint32_t)udp_length);
	return (size_t)(at + 2 - to);
}

/* The register after the pseudo header: all packets of a flow with one size begin alike. */
static uint32_t begin(const struct roce_path *path, size_t size)
{
	enum { FLOWS = 64 };
	static _Thread_local struct {
		struct roce_path path;
		size_t size;
		uint32_t crc;
	} known[FLOWS];
	/* Both directions of a flow have the same ports, so they are mixed to keep the two in different places. */
	const uint32_t ports = ((uint32_t)path->src_port << 16 | path->dst_port) + path->src[15];
	__typeof__(known[0]) *k = &known[((ports * UINT32_C(0x9e3779b1) >> 16) + size / 4) % FLOWS];

	if (k->size != size || memcmp(&k->path, path, sizeof(*path)) != 0) {
		uint8_t head[64];
		k->path = *path;
		k->size = size;
		k->crc = roce_crc(0xffffffff, head, pseudo(path, 8 + size + ROCE_ICRC, head));
	}
	return k->crc;
}

static uint32_t behind(uint32_t crc, const uint8_t *bytes, size_t size)
{
	enum { HEAD = 8, CONGESTION = 4 };
	uint8_t head[HEAD];

	if (size < HEAD) /* of no use, but set for a capture */
		return ~by_tables(crc, bytes, size);
	memcpy(head, bytes, HEAD);
	head[CONGESTION] = 0xff; /* routers may set marks */
	return ~roce_crc(by_tables(crc, head, HEAD), bytes + HEAD, size - HEAD);
}

uint32_t roce_icrc_ipv4(const struct roce_path *path, struct roce_ipv4 ip, const uint8_t *bytes, size_t size)
{
	uint32_t crc = begin(path, size);

	if (soft_gid_is_ipv4(path->src)) {
		if (ip.id)
			crc ^= numbers[0][ip.id >> 8] ^ numbers[1][ip.id & 0xff];
		if (ip.may_fragment)
			crc ^= fragments;
	}
	return behind(crc, bytes, size);
}

bool roce_icrc_find(uint32_t difference, size_t size, struct roce_ipv4 *found)
{
	/* Identification, flags and fragment offset are the four bytes before the rest of both headers. */
	const size_t behind = 20 - 8 + 8 + size;
	/* The difference from the assumed header: four bytes fed into an empty register equal the register four
	 * bytes earlier. */
	const uint32_t header = before(difference, behind + 4), flags = header >> 16 ^ 0x40;

	if (flags & ~UINT32_C(0x40))
		return false;
	*found = (struct roce_ipv4){ .id = (uint16_t)(header << 8 | (header >> 8 & 0xff)), .may_fragment = !flags };
	return true;
}

bool roce_icrc_check(const struct roce_path *path, const uint8_t *bytes, size_t size, uint16_t guess,
		     struct roce_ipv4 *found)
{
	const size_t covered = size - ROCE_ICRC;
	const uint32_t stored = little32(bytes + covered);

	*found = (struct roce_ipv4){ .id = guess };
	const uint32_t difference = stored ^ roce_icrc_ipv4(path, *found, bytes, covered);
	if (!difference)
		return true;
	if (!soft_gid_is_ipv4(path->src) || !roce_icrc_find(difference, covered, found))
		return false;
	found->id ^= guess; /* the result is the difference from the guess */
	return true;
}
