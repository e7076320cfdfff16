/* MessagePack (https://github.com/msgpack/msgpack/blob/master/spec.md), the part that the agent's protocol needs.
 *
 * Reading is done on views: `mp_parse` checks once that the bytes hold exactly one complete value; every other reader takes
 * a view that was checked so, never allocates and never reads outside of it. A reader answers false when the value has another type.
 */
#ifndef AGENTENV_MSGPACK_H
#define AGENTENV_MSGPACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "buffer.h"

enum mp_type { MP_NIL, MP_BOOL, MP_UINT, MP_INT, MP_FLOAT, MP_STR, MP_BIN, MP_ARRAY, MP_MAP, MP_EXT };

/* One complete value; `at` is NULL for a value that is not there. */
struct mp_value {
    const uint8_t *at;
    size_t size;
};

struct mp_bytes {
    const uint8_t *at;
    size_t size;
};

struct mp_iterator {
    const uint8_t *at;
    size_t size;
    uint64_t left; /* values still to come; a map of n pairs counts 2n */
};

/* Whether `data` is exactly one well-formed value, of any depth. */
bool mp_parse(const void *data, size_t size, struct mp_value *value);

enum mp_type mp_type(struct mp_value value);
bool mp_uint(struct mp_value value, uint64_t *out);
bool mp_int(struct mp_value value, int64_t *out);
bool mp_number(struct mp_value value, double *out); /* integers and floats */
bool mp_bool(struct mp_value value, bool *out);
bool mp_bytes(struct mp_value value, struct mp_bytes *out); /* str and bin alike */

/* The value under a string key of a map; false when `map` is none, has no such key, or holds nil there. */
bool mp_get(struct mp_value map, const char *key, struct mp_value *out);

bool mp_iterate_array(struct mp_value value, struct mp_iterator *iterator);
bool mp_iterate_map(struct mp_value value, struct mp_iterator *iterator); /* keys and values alternate */
bool mp_next(struct mp_iterator *iterator, struct mp_value *value);

void mp_write_nil(struct buffer *buffer);
void mp_write_bool(struct buffer *buffer, bool value);
void mp_write_uint(struct buffer *buffer, uint64_t value);
void mp_write_int(struct buffer *buffer, int64_t value);
void mp_write_double(struct buffer *buffer, double value);
void mp_write_array(struct buffer *buffer, uint32_t count);
void mp_write_map(struct buffer *buffer, uint32_t pairs);
void mp_write_bin(struct buffer *buffer, const void *bytes, size_t size);
void mp_write_str(struct buffer *buffer, const char *text);

/* A name from outside (a path, an argument): str where it is valid UTF-8, else bin. */
void mp_write_text(struct buffer *buffer, const char *text, size_t size);
/* A pair of a map: text, or nil where `text` is NULL. */
void mp_write_text_pair(struct buffer *buffer, const char *key, const char *text);

/* A sentence for people: always str, with a question mark for each byte that is no UTF-8. */
void mp_write_message(struct buffer *buffer, const char *text);

#endif
