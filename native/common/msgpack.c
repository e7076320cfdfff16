#include "msgpack.h"

#include <string.h>

/* What the first bytes of a value say about it. */
struct head {
    enum mp_type type;
    size_t header;    /* bytes before the payload */
    size_t payload;   /* bytes of a str, bin or ext; scalars lie in the header */
    uint64_t children; /* values that follow in an array or map */
    uint64_t bits;    /* the scalar's bytes, big endian, as a number */
};

static uint64_t big_endian(const uint8_t *at, size_t size) {
    uint64_t value = 0;
    for (size_t i = 0; i < size; i++)
        value = value << 8 | at[i];
    return value;
}

static uint64_t sign_extend(uint64_t bits, size_t size) {
    unsigned shift = 64 - 8 * (unsigned)size;
    return (uint64_t)((int64_t)(bits << shift) >> shift);
}

/* The formats 0xc0-0xdf; `width` bytes after the first hold a length, a count or the scalar itself. */
static const struct {
    uint8_t type, width, extra;
} FORMATS[32] = {
    {MP_NIL, 0, 0},   {MP_EXT, 0xff, 0}, {MP_BOOL, 0, 0},  {MP_BOOL, 0, 0},  /* nil, never used, false, true */
    {MP_BIN, 1, 0},   {MP_BIN, 2, 0},    {MP_BIN, 4, 0},                     /* bin 8, 16, 32 */
    {MP_EXT, 1, 1},   {MP_EXT, 2, 1},    {MP_EXT, 4, 1},                     /* ext 8, 16, 32: one byte of type */
    {MP_FLOAT, 4, 0}, {MP_FLOAT, 8, 0},
    {MP_UINT, 1, 0},  {MP_UINT, 2, 0},   {MP_UINT, 4, 0},  {MP_UINT, 8, 0},
    {MP_INT, 1, 0},   {MP_INT, 2, 0},    {MP_INT, 4, 0},   {MP_INT, 8, 0},
    {MP_EXT, 0, 2},   {MP_EXT, 0, 3},    {MP_EXT, 0, 5},   {MP_EXT, 0, 9},   {MP_EXT, 0, 17}, /* fixext 1, 2, 4, 8, 16 */
    {MP_STR, 1, 0},   {MP_STR, 2, 0},    {MP_STR, 4, 0},
    {MP_ARRAY, 2, 0}, {MP_ARRAY, 4, 0},  {MP_MAP, 2, 0},   {MP_MAP, 4, 0},
};

static bool read_wide(const uint8_t *at, size_t size, struct head *head) {
    uint8_t width = FORMATS[*at - 0xc0].width;
    if (width == 0xff || size < 1u + width)
        return false;
    uint64_t bits = big_endian(at + 1, width);
    head->type = FORMATS[*at - 0xc0].type;
    head->header = 1u + width;
    head->bits = bits;
    switch (head->type) {
    case MP_BOOL:
        head->bits = *at & 1;
        break;
    case MP_INT:
        head->bits = sign_extend(bits, width);
        break;
    case MP_STR:
    case MP_BIN:
    case MP_EXT:
        head->payload = (size_t)bits + FORMATS[*at - 0xc0].extra;
        break;
    case MP_ARRAY:
        head->children = bits;
        break;
    case MP_MAP:
        head->children = 2 * bits;
        break;
    default:
        break;
    }
    return true;
}

static bool read_head(const uint8_t *at, size_t size, struct head *head) {
    *head = (struct head){.header = 1};
    if (size == 0)
        return false;
    uint8_t first = *at;
    if (first < 0x80) {
        head->type = MP_UINT;
        head->bits = first;
    } else if (first < 0x90) {
        head->type = MP_MAP;
        head->children = 2u * (first & 0x0f);
    } else if (first < 0xa0) {
        head->type = MP_ARRAY;
        head->children = first & 0x0f;
    } else if (first < 0xc0) {
        head->type = MP_STR;
        head->payload = first & 0x1f;
    } else if (first >= 0xe0) {
        head->type = MP_INT;
        head->bits = sign_extend(first, 1);
    } else if (!read_wide(at, size, head)) {
        return false;
    }
    return head->payload <= size - head->header;
}

/* The bytes that one value takes with all that it contains, or 0 when it is malformed or cut short. Depth costs nothing: it only counts what is due. */
static size_t measure(const uint8_t *at, size_t size) {
    size_t used = 0;
    uint64_t due = 1;
    while (due) {
        struct head head;
        if (due > size - used || !read_head(at + used, size - used, &head))
            return 0;
        used += head.header + head.payload;
        due += head.children - 1;
    }
    return used;
}

bool mp_parse(const void *data, size_t size, struct mp_value *value) {
    if (measure(data, size) != size || size == 0)
        return false;
    *value = (struct mp_value){data, size};
    return true;
}

static struct head head_of(struct mp_value value) {
    struct head head;
    if (!value.at || !read_head(value.at, value.size, &head))
        return (struct head){.type = MP_NIL};
    return head;
}

enum mp_type mp_type(struct mp_value value) { return head_of(value).type; }

bool mp_uint(struct mp_value value, uint64_t *out) {
    struct head head = head_of(value);
    if (head.type != MP_UINT && !(head.type == MP_INT && (int64_t)head.bits >= 0))
        return false;
    *out = head.bits;
    return true;
}

bool mp_int(struct mp_value value, int64_t *out) {
    struct head head = head_of(value);
    if (head.type != MP_INT && !(head.type == MP_UINT && head.bits <= INT64_MAX))
        return false;
    *out = (int64_t)head.bits;
    return true;
}

bool mp_number(struct mp_value value, double *out) {
    struct head head = head_of(value);
    if (head.type == MP_UINT) {
        *out = (double)head.bits;
    } else if (head.type == MP_INT) {
        *out = (double)(int64_t)head.bits;
    } else if (head.type == MP_FLOAT && head.header == 5) {
        uint32_t bits = (uint32_t)head.bits;
        float narrow;
        memcpy(&narrow, &bits, sizeof narrow);
        *out = narrow;
    } else if (head.type == MP_FLOAT) {
        memcpy(out, &head.bits, sizeof *out);
    } else {
        return false;
    }
    return true;
}

bool mp_bool(struct mp_value value, bool *out) {
    struct head head = head_of(value);
    *out = head.bits != 0;
    return head.type == MP_BOOL;
}

bool mp_bytes(struct mp_value value, struct mp_bytes *out) {
    struct head head = head_of(value);
    if (head.type != MP_STR && head.type != MP_BIN)
        return false;
    *out = (struct mp_bytes){value.at + head.header, head.payload};
    return true;
}

static bool iterate(struct mp_value value, enum mp_type type, struct mp_iterator *iterator) {
    struct head head = head_of(value);
    if (head.type != type)
        return false;
    *iterator = (struct mp_iterator){value.at + head.header, value.size - head.header, head.children};
    return true;
}

bool mp_iterate_array(struct mp_value value, struct mp_iterator *iterator) { return iterate(value, MP_ARRAY, iterator); }

bool mp_iterate_map(struct mp_value value, struct mp_iterator *iterator) { return iterate(value, MP_MAP, iterator); }

bool mp_next(struct mp_iterator *iterator, struct mp_value *value) {
    if (iterator->left == 0)
        return false;
    size_t used = measure(iterator->at, iterator->size);
    if (used == 0)
        return false;
    *value = (struct mp_value){iterator->at, used};
    iterator->at += used;
    iterator->size -= used;
    iterator->left--;
    return true;
}

bool mp_get(struct mp_value map, const char *key, struct mp_value *out) {
    struct mp_iterator pairs;
    struct mp_value name, value;
    struct mp_bytes text;
    *out = (struct mp_value){0};
    if (!mp_iterate_map(map, &pairs))
        return false;
    while (mp_next(&pairs, &name) && mp_next(&pairs, &value)) {
        if (!mp_bytes(name, &text) || text.size != strlen(key) || memcmp(text.at, key, text.size) != 0)
            continue;
        if (mp_type(value) == MP_NIL)
            return false;
        *out = value;
        return true;
    }
    return false;
}

static void write_tagged(struct buffer *buffer, uint8_t tag, uint64_t value, size_t width) {
    uint8_t bytes[9] = {tag};
    for (size_t i = 0; i < width; i++)
        bytes[1 + i] = (uint8_t)(value >> (8 * (width - 1 - i)));
    buffer_append(buffer, bytes, 1 + width);
}

void mp_write_nil(struct buffer *buffer) { write_tagged(buffer, 0xc0, 0, 0); }

void mp_write_bool(struct buffer *buffer, bool value) { write_tagged(buffer, value ? 0xc3 : 0xc2, 0, 0); }

void mp_write_uint(struct buffer *buffer, uint64_t value) {
    if (value < 0x80)
        write_tagged(buffer, (uint8_t)value, 0, 0);
    else if (value <= UINT8_MAX)
        write_tagged(buffer, 0xcc, value, 1);
    else if (value <= UINT16_MAX)
        write_tagged(buffer, 0xcd, value, 2);
    else if (value <= UINT32_MAX)
        write_tagged(buffer, 0xce, value, 4);
    else
        write_tagged(buffer, 0xcf, value, 8);
}

void mp_write_int(struct buffer *buffer, int64_t value) {
    if (value >= 0)
        mp_write_uint(buffer, (uint64_t)value);
    else
        write_tagged(buffer, 0xd3, (uint64_t)value, 8);
}

void mp_write_double(struct buffer *buffer, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    write_tagged(buffer, 0xcb, bits, 8);
}

void mp_write_array(struct buffer *buffer, uint32_t count) {
    if (count < 16)
        write_tagged(buffer, (uint8_t)(0x90 | count), 0, 0);
    else
        write_tagged(buffer, 0xdd, count, 4);
}

void mp_write_map(struct buffer *buffer, uint32_t pairs) {
    if (pairs < 16)
        write_tagged(buffer, (uint8_t)(0x80 | pairs), 0, 0);
    else
        write_tagged(buffer, 0xdf, pairs, 4);
}

void mp_write_bin(struct buffer *buffer, const void *bytes, size_t size) {
    write_tagged(buffer, 0xc6, size, 4);
    buffer_append(buffer, bytes, size);
}

static void write_sized_str(struct buffer *buffer, const char *text, size_t size) {
    if (size < 32)
        write_tagged(buffer, (uint8_t)(0xa0 | size), 0, 0);
    else
        write_tagged(buffer, 0xdb, size, 4);
    buffer_append(buffer, text, size);
}

void mp_write_str(struct buffer *buffer, const char *text) { write_sized_str(buffer, text, strlen(text)); }

/* The length of the UTF-8 sequence at `at` (RFC 3629: no surrogates, nothing overlong, nothing above U+10FFFF), or 0. */
static size_t utf8_sequence(const uint8_t *at, size_t size) {
    uint8_t first = at[0];
    if (first < 0x80)
        return 1;
    size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0xc2 || first > 0xf4 || size < length)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    bool overlong = (first == 0xe0 && at[1] < 0xa0) || (first == 0xf0 && at[1] < 0x90);
    bool outside = (first == 0xed && at[1] >= 0xa0) || (first == 0xf4 && at[1] >= 0x90);
    return overlong || outside ? 0 : length;
}

void mp_write_text(struct buffer *buffer, const char *text, size_t size) {
    for (size_t at = 0; at < size;) {
        size_t length = utf8_sequence((const uint8_t *)text + at, size - at);
        if (length == 0) {
            mp_write_bin(buffer, text, size);
            return;
        }
        at += length;
    }
    write_sized_str(buffer, text, size);
}

void mp_write_text_pair(struct buffer *buffer, const char *key, const char *text) {
    mp_write_str(buffer, key);
    if (text)
        mp_write_text(buffer, text, strlen(text));
    else
        mp_write_nil(buffer);
}

void mp_write_message(struct buffer *buffer, const char *text) {
    size_t size = strlen(text), start = 0;
    struct buffer clean = {0};
    for (size_t at = 0; at < size;) {
        size_t length = utf8_sequence((const uint8_t *)text + at, size - at);
        if (length == 0) {
            buffer_append(&clean, text + start, at - start);
            buffer_append(&clean, "?", 1);
            start = at + 1;
        }
        at += length ? length : 1;
    }
    buffer_append(&clean, text + start, size - start);
    write_sized_str(buffer, (const char *)clean.data, clean.failed ? 0 : clean.length);
    buffer_release(&clean);
}
