/* Events of a Kineto trace, from JSON text to columns, at the speed of memory.
 *
 * An accelerator and nothing else: every event it is not sure of (odd types, exponents, escapes in
 * keys, metadata) it hands back untouched, and Python decides what it means (lenient.py). It
 * accepts exactly the values Python's json accepts with strict=False. All reads are bounded by
 * `end`; nothing recurses deeper than DEPTH.
 */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define DEPTH 64
#define LATEST_US 3000000000000000ll
#define LONGEST_TEXT 65536
#define SCRATCH 65536
#define ARENA_LIMIT ((size_t)1 << 31)

enum { MORE = 0, ODD = 1, END = 2, FULL = 3, JUNK = 4, NO_MEMORY = 5 };
enum { FINE = 0, SHORT = 1, BAD = 2, UNSURE = 3 };

typedef struct {
    uint64_t hash;
    size_t at;
    uint32_t length;
} Entry;

typedef struct {
    uint8_t *arena;
    size_t used, room;
    Entry *entries;
    int32_t *slots;
    uint32_t count, mask;
    uint64_t seed;
} Vocabulary;

/* The order of the pointers is the order of columns.RAW. */
typedef struct {
    int64_t *ts, *dur, *correlation, *external, *frame, *parent, *sequence, *bytes, *allocated,
        *reserved, *graph_node;
    int32_t *name, *category, *lane, *shape, *info, *device, *stream, *module, *graph,
        *forward_thread, *device_type;
    uint8_t *phase;
} Columns;

typedef struct {
    Columns columns;
    int64_t capacity, rows, flows;
    Vocabulary *vocabulary;
    int32_t wants_comma;
    int32_t lane;
    uint32_t lane_length;
    uint8_t lane_text[512];
    uint8_t shape[SCRATCH], info[SCRATCH];
} Reader;

typedef struct {
    const uint8_t *end;
    int status;
} Text;

/* ---------------------------------------------------------------- vocabulary */

static uint64_t mix(uint64_t a) {
    a ^= a >> 32;
    a *= 0x9E3779B97F4A7C15ull;
    a ^= a >> 29;
    return a;
}

static uint64_t hash_of(const uint8_t *p, size_t n, uint64_t seed) {
    uint64_t h = seed ^ (n * 0xFF51AFD7ED558CCDull), word;
    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&word, p, 8);
        h = mix(h ^ word) * 0xC2B2AE3D27D4EB4Full;
    }
    word = 0;
    memcpy(&word, p, n);
    return mix(mix(h ^ word));
}

Vocabulary *vocabulary_new(uint64_t seed) {
    Vocabulary *v = calloc(1, sizeof *v);
    if (!v) return NULL;
    v->mask = (1u << 12) - 1;
    v->room = 1 << 16;
    v->seed = seed;
    v->arena = malloc(v->room);
    v->entries = malloc(sizeof(Entry) * (v->mask + 1) / 2);
    v->slots = malloc(sizeof(int32_t) * (v->mask + 1));
    if (!v->arena || !v->entries || !v->slots) return NULL;
    memset(v->slots, 0xFF, sizeof(int32_t) * (v->mask + 1));
    return v;
}

void vocabulary_free(Vocabulary *v) {
    if (!v) return;
    free(v->arena);
    free(v->entries);
    free(v->slots);
    free(v);
}

static int grow(Vocabulary *v) {
    uint32_t mask = v->mask * 2 + 1;
    if (mask > (1u << 30)) return 0;
    Entry *entries = realloc(v->entries, sizeof(Entry) * ((size_t)mask + 1) / 2);
    if (!entries) return 0;
    v->entries = entries;
    int32_t *slots = malloc(sizeof(int32_t) * ((size_t)mask + 1));
    if (!slots) return 0;
    memset(slots, 0xFF, sizeof(int32_t) * ((size_t)mask + 1));
    for (uint32_t i = 0; i < v->count; i++) {
        uint32_t slot = (uint32_t)v->entries[i].hash & mask;
        while (slots[slot] >= 0) slot = (slot + 1) & mask;
        slots[slot] = (int32_t)i;
    }
    free(v->slots);
    v->slots = slots;
    v->mask = mask;
    return 1;
}

/* The code of a text, new or known; -2 where memory or the limit ran out. */
int32_t vocabulary_code(Vocabulary *v, const uint8_t *text, uint64_t length) {
    uint64_t hash = hash_of(text, length, v->seed);
    uint32_t slot = (uint32_t)hash & v->mask;
    for (int32_t code; (code = v->slots[slot]) >= 0; slot = (slot + 1) & v->mask) {
        Entry *e = &v->entries[code];
        if (e->hash == hash && e->length == length && !memcmp(v->arena + e->at, text, length))
            return code;
    }
    if (v->used + length > ARENA_LIMIT) return -2;
    if (v->used + length > v->room) {
        size_t room = v->room;
        while (v->used + length > room) room *= 2;
        uint8_t *arena = realloc(v->arena, room);
        if (!arena) return -2;
        v->arena = arena;
        v->room = room;
    }
    if (v->count + 1 > (v->mask + 1) / 2) {
        if (!grow(v)) return -2;
        slot = (uint32_t)hash & v->mask;
        while (v->slots[slot] >= 0) slot = (slot + 1) & v->mask;
    }
    memcpy(v->arena + v->used, text, length);
    v->entries[v->count] = (Entry){hash, v->used, (uint32_t)length};
    v->used += length;
    v->slots[slot] = (int32_t)v->count;
    return (int32_t)v->count++;
}

uint32_t vocabulary_count(const Vocabulary *v) { return v->count; }

const uint8_t *vocabulary_text(const Vocabulary *v, uint32_t code, uint64_t *length) {
    *length = v->entries[code].length;
    return v->arena + v->entries[code].at;
}

/* ---------------------------------------------------------------- JSON */

static const uint8_t *fail(Text *t, int status) {
    t->status = status;
    return NULL;
}

static inline const uint8_t *space(const uint8_t *p, const uint8_t *end) {
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) p++;
    return p;
}

static inline int is_digit(uint8_t c) { return c >= '0' && c <= '9'; }

static int is_hex(uint8_t c) {
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* p after the opening quote; returns the closing one. */
static inline const uint8_t *string(Text *t, const uint8_t *p, int *escaped) {
    const uint8_t *end = t->end;
    for (;;) {
#if defined(__SSE2__)
        const __m128i quote = _mm_set1_epi8('"'), back = _mm_set1_epi8('\\');
        while (end - p >= 16) {
            __m128i part = _mm_loadu_si128((const __m128i *)p);
            int hit = _mm_movemask_epi8(
                _mm_or_si128(_mm_cmpeq_epi8(part, quote), _mm_cmpeq_epi8(part, back)));
            if (hit) {
                p += __builtin_ctz(hit);
                break;
            }
            p += 16;
        }
#endif
        while (p < end && *p != '"' && *p != '\\') p++;
        if (p >= end) return fail(t, SHORT);
        if (*p == '"') return p;
        *escaped = 1;
        if (end - p < 2) return fail(t, SHORT);
        switch (p[1]) {
        case '"': case '\\': case '/': case 'b': case 'f': case 'n': case 'r': case 't':
            p += 2;
            break;
        case 'u':
            for (int i = 2; i < 6; i++) {
                if (p + i >= end) return fail(t, SHORT);
                if (!is_hex(p[i])) return fail(t, BAD);
            }
            p += 6;
            break;
        default:
            return fail(t, BAD);
        }
    }
}

static const uint8_t *literal(Text *t, const uint8_t *p, const char *word) {
    for (; *word; word++, p++) {
        if (p >= t->end) return fail(t, SHORT);
        if (*p != (uint8_t)*word) return fail(t, BAD);
    }
    return p;
}

static const uint8_t *number(Text *t, const uint8_t *p) {
    const uint8_t *end = t->end;
    if (p < end && *p == '-') p++;
    if (p >= end) return fail(t, SHORT);
    if (*p == 'I') return literal(t, p, "Infinity");
    if (!is_digit(*p)) return fail(t, BAD);
    if (*p == '0') p++;
    else
        while (p < end && is_digit(*p)) p++;
    if (p < end && *p == '.') {
        if (p + 1 >= end) return fail(t, SHORT);
        if (!is_digit(*++p)) return fail(t, BAD);
        while (p < end && is_digit(*p)) p++;
    }
    if (p < end && (*p == 'e' || *p == 'E')) {
        p++;
        if (p < end && (*p == '+' || *p == '-')) p++;
        if (p >= end) return fail(t, SHORT);
        if (!is_digit(*p)) return fail(t, BAD);
        while (p < end && is_digit(*p)) p++;
    }
    return p >= end ? fail(t, SHORT) : p; /* at the end of a block it may go on */
}

static const uint8_t *value(Text *t, const uint8_t *p, int depth);

static const uint8_t *sequence(Text *t, const uint8_t *p, int depth, uint8_t close) {
    if (depth <= 0) return fail(t, BAD);
    p = space(p + 1, t->end);
    if (p >= t->end) return fail(t, SHORT);
    if (*p == close) return p + 1;
    for (;;) {
        if (close == '}') {
            int escaped = 0;
            if (*p != '"') return fail(t, BAD);
            if (!(p = string(t, p + 1, &escaped))) return NULL;
            p = space(p + 1, t->end);
            if (p >= t->end) return fail(t, SHORT);
            if (*p != ':') return fail(t, BAD);
            p = space(p + 1, t->end);
        }
        if (!(p = value(t, p, depth - 1))) return NULL;
        p = space(p, t->end);
        if (p >= t->end) return fail(t, SHORT);
        if (*p == close) return p + 1;
        if (*p != ',') return fail(t, BAD);
        p = space(p + 1, t->end);
        if (p >= t->end) return fail(t, SHORT);
    }
}

static const uint8_t *value(Text *t, const uint8_t *p, int depth) {
    int escaped = 0;
    if (p >= t->end) return fail(t, SHORT);
    switch (*p) {
    case '"':
        p = string(t, p + 1, &escaped);
        return p ? p + 1 : NULL;
    case '{': return sequence(t, p, depth, '}');
    case '[': return sequence(t, p, depth, ']');
    case 't': return literal(t, p, "true");
    case 'f': return literal(t, p, "false");
    case 'n': return literal(t, p, "null");
    case 'N': return literal(t, p, "NaN");
    case 'I': return literal(t, p, "Infinity");
    default: return number(t, p);
    }
}

/* Where the value at `start` ends; -1: the text ends first; -2: not JSON (or too deep). */
int64_t value_end(const uint8_t *text, int64_t start, int64_t length) {
    Text t = {text + length, FINE};
    const uint8_t *p = value(&t, text + start, DEPTH);
    if (p) return p - text;
    return t.status == SHORT ? -1 : -2;
}

/* ---------------------------------------------------------------- fields */

static int ends_number(uint8_t c) {
    return c == ',' || c == '}' || c == ']' || c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* Microseconds in text to nanoseconds, half away from zero: exact, which float64 is not. */
static const uint8_t *time_ns(Text *t, const uint8_t *p, int64_t *out) {
    const uint8_t *end = t->end, *first;
    int negative = 0;
    int64_t micros = 0, nanos = 0;
    if (p < end && *p == '-') negative = 1, p++;
    if (p >= end) return fail(t, SHORT);
    for (first = p; p < end && is_digit(*p) && p - first < 16; p++) micros = micros * 10 + *p - '0';
    if (p == first || (*first == '0' && p - first > 1)) return fail(t, UNSURE);
    if (micros >= LATEST_US) return fail(t, UNSURE);
    if (p < end && *p == '.') {
        int64_t scale = 100;
        first = ++p;
        for (; p < end && is_digit(*p); p++) {
            if (scale) nanos += (*p - '0') * scale;
            else if (p - first == 3 && *p >= '5') nanos++;
            scale /= 10;
        }
        if (p == first) return fail(t, p < end ? BAD : SHORT);
    }
    if (p >= end) return fail(t, SHORT);
    if (!ends_number(*p)) return fail(t, UNSURE);
    micros = micros * 1000 + nanos;
    *out = negative ? -micros : micros;
    return p;
}

/* A whole number, bare or in quotes; null and other text leave the column as it was. */
static const uint8_t *integer(Text *t, const uint8_t *p, int64_t *out, int64_t low, int64_t high) {
    const uint8_t *end = t->end, *first, *start = p;
    int negative = 0, quoted = 0;
    int64_t found = 0;
    if (p >= end) return fail(t, SHORT);
    if (*p == 'n') return literal(t, p, "null");
    if (*p == '"') quoted = 1, p++;
    if (p < end && *p == '-') negative = 1, p++;
    for (first = p; p < end && is_digit(*p) && p - first < 18; p++) found = found * 10 + *p - '0';
    if (p >= end) return fail(t, SHORT);
    if (quoted ? *p != '"' : !ends_number(*p)) {
        if (!quoted || p != first) return fail(t, UNSURE);
        return value(t, start, 1); /* a word where a number was expected */
    }
    if (p == first || (*first == '0' && p - first > 1)) return fail(t, UNSURE);
    if (negative) found = -found;
    if (found < low || found > high) return fail(t, UNSURE);
    *out = found;
    return p + quoted;
}

typedef struct {
    int64_t ts, dur, correlation, external, frame, parent, sequence, bytes, allocated, reserved,
        graph_node;
    int64_t device, stream, module, graph, forward_thread, device_type;
    uint32_t shape, info, seen;
} Row;

static const uint8_t *keep(Text *t, const uint8_t *key, size_t length, const uint8_t *p,
                           uint8_t *scratch, uint32_t *used) {
    const uint8_t *stop = value(t, p, DEPTH - 2);
    if (!stop) return NULL;
    size_t size = (size_t)(stop - p);
    for (const uint8_t *b = p; (b = memchr(b, '\\', (size_t)(stop - b))); b += 2)
        if (b[1] == 'u' && (b[2] == 'd' || b[2] == 'D')) return fail(t, UNSURE);
    if (*used + length + size + 4 > SCRATCH) return fail(t, UNSURE);
    uint8_t *to = scratch + *used;
    if (*used) *to++ = ',';
    *to++ = '"';
    memcpy(to, key, length);
    to += length;
    *to++ = '"';
    *to++ = ':';
    memcpy(to, p, size);
    *used = (uint32_t)(to + size - scratch);
    return stop;
}

#define IS(word) (length == sizeof(word) - 1 && !memcmp(key, word, sizeof(word) - 1))
#define WIDE INT64_MIN / 2, INT64_MAX / 2
#define NARROW -2147483647ll, 2147483647ll
/* A key that comes twice is for Python to decide: the last counts, even if it is null. */
#define NUMBER(bit, word, column, range)                       \
    if (IS(word)) {                                            \
        if (row->seen >> bit & 1) return fail(t, UNSURE);      \
        row->seen |= 1u << bit;                                \
        return integer(t, p, &row->column, range);             \
    }

#define SHAPE(word) \
    if (IS(word)) return keep(t, key, length, p, r->shape, &row->shape);
#define INFO(word) \
    if (IS(word)) return keep(t, key, length, p, r->info, &row->info);

/* One argument, by the length of its key first: a comparison or two each. The lists are those of
 * NUMBERS, SHAPE and INFO in lenient.py. */
static const uint8_t *argument(Text *t, Reader *r, Row *row, const uint8_t *key, size_t length,
                               const uint8_t *p) {
    switch (length) {
    case 3:
        INFO("Seq")
        break;
    case 4:
        INFO("grid") INFO("kind") INFO("Rank")
        break;
    case 5:
        INFO("block") INFO("dtype")
        NUMBER(6, "bytes", bytes, WIDE) NUMBER(7, "Bytes", bytes, WIDE)
        break;
    case 6:
        NUMBER(3, "device", device, NARROW) NUMBER(5, "stream", stream, NARROW)
        break;
    case 8:
        NUMBER(16, "graph id", graph, NARROW)
        INFO("Src Rank") INFO("Dst Rank")
        break;
    case 9:
        NUMBER(10, "Python id", frame, WIDE) NUMBER(4, "Device Id", device, NARROW)
        INFO("Root Rank")
        break;
    case 10:
        SHAPE("Input Dims") SHAPE("Input type")
        INFO("Call stack") INFO("Group size")
        break;
    case 11:
        NUMBER(0, "External id", external, WIDE) NUMBER(2, "correlation", correlation, WIDE)
        NUMBER(1, "external id", external, WIDE) NUMBER(15, "Device Type", device_type, NARROW)
        INFO("kernel_file")
        break;
    case 13:
        SHAPE("Input Strides")
        NUMBER(9, "Fwd thread id", forward_thread, NARROW)
        NUMBER(17, "graph node id", graph_node, WIDE)
        INFO("In msg nelems") INFO("In split size")
        break;
    case 14:
        NUMBER(14, "Total Reserved", reserved, WIDE)
        INFO("Out msg nelems") INFO("Out split size") INFO("cuda_sync_kind")
        INFO("wait_on_stream") INFO("kernel_backend")
        break;
    case 15:
        SHAPE("Concrete Inputs")
        NUMBER(8, "Sequence number", sequence, WIDE) NUMBER(13, "Total Allocated", allocated, WIDE)
        INFO("Collective name")
        break;
    case 16:
        NUMBER(11, "Python parent id", parent, WIDE) NUMBER(12, "Python module id", module, NARROW)
        INFO("Module Hierarchy") INFO("Process Group ID")
        break;
    case 18:
        INFO("Process Group Name")
        break;
    case 19:
        INFO("Process Group Ranks")
        break;
    case 25:
        INFO("est. achieved occupancy %") INFO("Process Group Description")
        break;
    case 33:
        INFO("wait_on_cuda_event_record_corr_id")
        break;
    }
    return value(t, p, DEPTH - 2);
}

static const uint8_t *arguments(Text *t, Reader *r, Row *row, const uint8_t *p) {
    if (p >= t->end) return fail(t, SHORT);
    if (*p == 'n') return literal(t, p, "null");
    if (*p != '{') return fail(t, UNSURE);
    p = space(p + 1, t->end);
    if (p >= t->end) return fail(t, SHORT);
    if (*p == '}') return p + 1;
    for (;;) {
        int escaped = 0;
        const uint8_t *key = p + 1, *stop;
        if (*p != '"') return fail(t, BAD);
        if (!(stop = string(t, key, &escaped))) return NULL;
        if (escaped) return fail(t, UNSURE);
        p = space(stop + 1, t->end);
        if (p >= t->end) return fail(t, SHORT);
        if (*p != ':') return fail(t, BAD);
        p = space(p + 1, t->end);
        if (!(p = argument(t, r, row, key, (size_t)(stop - key), p))) return NULL;
        p = space(p, t->end);
        if (p >= t->end) return fail(t, SHORT);
        if (*p == '}') return p + 1;
        if (*p != ',') return fail(t, BAD);
        p = space(p + 1, t->end);
        if (p >= t->end) return fail(t, SHORT);
    }
}

/* ---------------------------------------------------------------- events */

typedef struct {
    const uint8_t *at;
    size_t length;
} Span;

/* A string's content, quotes off; a null counts as absent. */
static const uint8_t *text_span(Text *t, const uint8_t *p, Span *out) {
    int escaped = 0;
    if (p >= t->end) return fail(t, SHORT);
    if (*p != '"') return fail(t, UNSURE);
    const uint8_t *stop = string(t, p + 1, &escaped);
    if (!stop) return NULL;
    if (stop - p > LONGEST_TEXT) return fail(t, UNSURE);
    *out = (Span){p + 1, (size_t)(stop - p - 1)};
    return stop + 1;
}

/* pid and tid as they stand: a whole number, or a short plain string with its quotes on. */
static const uint8_t *token(Text *t, const uint8_t *p, Span *out) {
    const uint8_t *first = p;
    if (p < t->end && *p == '"') {
        for (p++; p < t->end && *p != '"'; p++)
            if (*p < ' ' || *p > '~' || *p == '\\' || p - first > 200) return fail(t, UNSURE);
        if (p >= t->end) return fail(t, SHORT);
        p++;
    } else {
        int64_t ignored = 0;
        if (p < t->end && *p == 'n') return fail(t, UNSURE);
        if (!(p = integer(t, p, &ignored, WIDE))) return NULL;
        if (*first == '-' && !ignored) return fail(t, UNSURE);
    }
    *out = (Span){first, (size_t)(p - first)};
    return p;
}

static int32_t lane_code(Reader *r, Span pid, Span tid) {
    uint8_t text[512];
    size_t length = pid.length + tid.length + 1;
    if (length > sizeof text) return -3;
    memcpy(text, pid.at, pid.length);
    text[pid.length] = '\n';
    memcpy(text + pid.length + 1, tid.at, tid.length);
    if (length != r->lane_length || memcmp(text, r->lane_text, length)) {
        r->lane = vocabulary_code(r->vocabulary, text, length);
        memcpy(r->lane_text, text, length);
        r->lane_length = (uint32_t)length;
    }
    return r->lane;
}

static int store(Reader *r, const Row *row, uint8_t phase, Span name, Span category, Span pid,
                 Span tid) {
    int64_t i = r->rows;
    Columns *c = &r->columns;
    Vocabulary *v = r->vocabulary;
    int32_t lane = lane_code(r, pid, tid);
    if (lane == -3) return UNSURE;
    int32_t named = vocabulary_code(v, name.at, name.length);
    int32_t cat = category.at ? vocabulary_code(v, category.at, category.length) : -1;
    int32_t shape = row->shape ? vocabulary_code(v, r->shape, row->shape) : -1;
    int32_t info = row->info ? vocabulary_code(v, r->info, row->info) : -1;
    if (lane == -2 || named == -2 || cat == -2 || shape == -2 || info == -2) return NO_MEMORY;
    c->ts[i] = row->ts;
    c->dur[i] = row->dur;
    c->correlation[i] = row->correlation;
    c->external[i] = row->external;
    c->frame[i] = row->frame;
    c->parent[i] = row->parent;
    c->sequence[i] = row->sequence;
    c->bytes[i] = row->bytes;
    c->allocated[i] = row->allocated;
    c->reserved[i] = row->reserved;
    c->graph_node[i] = row->graph_node;
    c->name[i] = named;
    c->category[i] = cat;
    c->lane[i] = lane;
    c->shape[i] = shape;
    c->info[i] = info;
    c->device[i] = (int32_t)row->device;
    c->stream[i] = (int32_t)row->stream;
    c->module[i] = (int32_t)row->module;
    c->graph[i] = (int32_t)row->graph;
    c->forward_thread[i] = (int32_t)row->forward_thread;
    c->device_type[i] = (int32_t)row->device_type;
    c->phase[i] = phase;
    r->rows++;
    return FINE;
}

enum { TS = 1, DUR = 2, PH = 4, NAME = 8, CAT = 16, PID = 32, TID = 64, ARGS = 128 };

/* Notes that a key was met; a second time it is not this scanner's to judge. */
static int once(Text *t, uint32_t *seen, uint32_t key) {
    if (*seen & key) return fail(t, UNSURE) != NULL;
    *seen |= key;
    return 1;
}

static const uint8_t *event(Text *t, Reader *r, const uint8_t *p) {
    Row row;
    uint32_t seen = 0;
    Span name = {0}, category = {0}, phase = {0}, pid = {0}, tid = {0};
    memset(&row, 0xFF, sizeof row); /* every number -1: absent */
    row.shape = row.info = row.seen = 0;
    row.bytes = 0;
    p = space(p + 1, t->end);
    if (p >= t->end) return fail(t, SHORT);
    if (*p == '}') return fail(t, UNSURE);
    for (;;) {
        int escaped = 0;
        const uint8_t *key = p + 1, *stop;
        if (*p != '"') return fail(t, BAD);
        if (!(stop = string(t, key, &escaped))) return NULL;
        if (escaped) return fail(t, UNSURE);
        size_t length = (size_t)(stop - key);
        p = space(stop + 1, t->end);
        if (p >= t->end) return fail(t, SHORT);
        if (*p != ':') return fail(t, BAD);
        p = space(p + 1, t->end);
        if (IS("ts")) p = once(t, &seen, TS) ? time_ns(t, p, &row.ts) : NULL;
        else if (IS("dur")) p = once(t, &seen, DUR) ? time_ns(t, p, &row.dur) : NULL;
        else if (IS("ph")) p = once(t, &seen, PH) ? text_span(t, p, &phase) : NULL;
        else if (IS("name")) p = once(t, &seen, NAME) ? text_span(t, p, &name) : NULL;
        else if (IS("cat")) p = once(t, &seen, CAT) ? text_span(t, p, &category) : NULL;
        else if (IS("pid")) p = once(t, &seen, PID) ? token(t, p, &pid) : NULL;
        else if (IS("tid")) p = once(t, &seen, TID) ? token(t, p, &tid) : NULL;
        else if (IS("args")) p = once(t, &seen, ARGS) ? arguments(t, r, &row, p) : NULL;
        else p = value(t, p, DEPTH - 1);
        if (!p) return NULL;
        p = space(p, t->end);
        if (p >= t->end) return fail(t, SHORT);
        if (*p == '}') break;
        if (*p != ',') return fail(t, BAD);
        p = space(p + 1, t->end);
        if (p >= t->end) return fail(t, SHORT);
    }
    if (phase.length != 1) return fail(t, UNSURE);
    switch (*phase.at) {
    case 's': case 'f': case 't':
        r->flows++;
        return p + 1;
    case 'X':
        if (!(seen & DUR) || row.dur < 0) return fail(t, UNSURE);
        break;
    case 'i': case 'I':
        row.dur = 0;
        break;
    default:
        return fail(t, UNSURE);
    }
    if (!(seen & TS) || !name.at || !pid.at || !tid.at) return fail(t, UNSURE);
    int stored = store(r, &row, *phase.at, name, category, pid, tid);
    return stored == FINE ? p + 1 : fail(t, stored);
}

Reader *reader_new(Vocabulary *vocabulary) {
    Reader *r = calloc(1, sizeof *r);
    if (r) r->vocabulary = vocabulary;
    return r;
}

void reader_free(Reader *r) { free(r); }

/* Where the next rows go: columns of `capacity` rows, `rows` of them filled. */
void reader_target(Reader *r, const Columns *columns, int64_t capacity, int64_t rows) {
    r->columns = *columns;
    r->capacity = capacity;
    r->rows = rows;
}

int64_t reader_rows(const Reader *r) { return r->rows; }
int64_t reader_flows(const Reader *r) { return r->flows; }
void reader_count_flows(Reader *r, int64_t flows) { r->flows = flows; }
void reader_wants_comma(Reader *r, int32_t wants) { r->wants_comma = wants; }

/* Read events from `*position` on; it is left where the reading stopped. */
int scan(Reader *r, const uint8_t *text, int64_t length, int64_t *position) {
    Text t = {text + length, FINE};
    const uint8_t *p = text + *position;
    for (;;) {
        *position = p - text;
        const uint8_t *q = space(p, t.end);
        if (q >= t.end) return MORE;
        if (*q == ']') {
            *position = q + 1 - text;
            return END;
        }
        if (r->wants_comma) {
            if (*q != ',') return JUNK;
            q = space(q + 1, t.end);
            if (q >= t.end) return MORE;
        }
        if (*q != '{') { /* a comma before the bracket is forgiven */
            *position = q - text + (*q == ']');
            return *q == ']' ? END : ODD;
        }
        if (r->rows >= r->capacity) return FULL;
        if (!(p = event(&t, r, q))) {
            if (t.status == SHORT) return MORE;
            *position = q - text;
            return t.status == NO_MEMORY ? NO_MEMORY : ODD;
        }
        r->wants_comma = 1;
    }
}
