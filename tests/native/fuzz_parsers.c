/* Fuzz target of everything that reads bytes from outside: frames, MessagePack, archive headers.
 *
 * With clang: -fsanitize=fuzzer,address,undefined. With any compiler: -DSTANDALONE, and the program makes inputs of its own for the number
 * of rounds it is given (seeded, so that a failure can be repeated): valid frames and headers with random damage, and plain noise. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frame.h"
#include "tar.h"
#include "tar_entry.h"

struct input {
    const uint8_t *at;
    size_t size;
};

static bool read_input(void *argument, void *bytes, size_t size) {
    struct input *source = argument;
    if (size > source->size)
        return false;
    memcpy(bytes, source->at, size);
    source->at += size;
    source->size -= size;
    return true;
}

/* Looks at a value in every way there is; what comes out is summed up so that no read is optimised away. */
static uint64_t look_at(struct mp_value value, int depth) {
    struct mp_iterator iterator;
    struct mp_value item;
    struct mp_bytes bytes;
    uint64_t sum = (uint64_t)mp_type(value), number;
    int64_t signed_number;
    double real;
    bool truth;
    if (mp_uint(value, &number))
        sum += number;
    if (mp_int(value, &signed_number))
        sum += (uint64_t)signed_number;
    if (mp_number(value, &real))
        sum += real > 0;
    if (mp_bool(value, &truth))
        sum += truth;
    if (mp_bytes(value, &bytes))
        for (size_t i = 0; i < bytes.size; i++)
            sum += bytes.at[i];
    if (mp_get(value, "op", &item))
        sum += item.size;
    if (depth < 8 && (mp_iterate_array(value, &iterator) || mp_iterate_map(value, &iterator)))
        while (mp_next(&iterator, &item))
            sum += look_at(item, depth + 1);
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static volatile uint64_t sink;
    static struct tar_entry entry;
    struct frame frame;
    struct buffer copy = {0};
    const char *problem;
    size_t used, at = 0;
    while (frame_parse(data + at, size - at, &frame, &used) == FRAME_COMPLETE) {
        sink += look_at(frame.body, 0);
        at += used;
    }
    struct mp_value value;
    if (mp_parse(data, size, &value))
        sink += look_at(value, 0);
    struct input input = {data, size};
    const struct tar_source archive = {read_input, &input};
    while (tar_next(&archive, &entry, &problem))
        sink += strlen(entry.path) + strlen(entry.link) + entry.size;
    mp_write_text(&copy, (const char *)data, size);
    char *text = strndup((const char *)data, size);
    mp_write_message(&copy, text);
    free(text);
    buffer_release(&copy);
    return 0;
}

#ifdef STANDALONE
enum { INPUT_MOST = 4096 };

static uint64_t random_state;

static uint32_t random_number(uint32_t below) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % below;
}

static void write_random(struct buffer *out, int depth) {
    uint32_t count = random_number(5);
    switch (random_number(depth > 3 ? 6 : 8)) {
    case 0:
        mp_write_nil(out);
        break;
    case 1:
        mp_write_bool(out, random_number(2));
        break;
    case 2:
        mp_write_uint(out, (uint64_t)random_number(UINT32_MAX) << random_number(33));
        break;
    case 3:
        mp_write_int(out, -(int64_t)random_number(UINT32_MAX));
        break;
    case 4:
        mp_write_str(out, "op");
        break;
    case 5:
        mp_write_bin(out, "0123456789", random_number(11));
        break;
    case 6:
        mp_write_array(out, count);
        while (count--)
            write_random(out, depth + 1);
        break;
    default:
        mp_write_map(out, count);
        for (count *= 2; count--;)
            write_random(out, depth + 1);
    }
}

static void write_frame(struct buffer *out) {
    size_t mark = frame_begin(out, random_number(UINT32_MAX), (enum frame_kind)random_number(FRAME_KINDS + 1));
    write_random(out, 0);
    frame_end(out, mark);
}

static void write_archive(struct buffer *out) {
    static const char TYPES[] = "0123456xgLKS";
    struct tar_header header = {.name = "some/name", .mode = "0000644", .uid = "0", .gid = "0", .mtime = "0", .magic = "ustar", .version = "00"};
    header.type = TYPES[random_number(sizeof TYPES - 1)];
    snprintf(header.size, sizeof header.size, "%o", random_number(300));
    for (uint32_t damage = random_number(3); damage; damage--)
        ((uint8_t *)&header)[random_number(sizeof header)] = (uint8_t)random_number(256);
    unsigned sum = tar_checksum(&header);
    snprintf(header.checksum, sizeof header.checksum, "%06o", sum & 0777777);
    char records[TAR_BLOCK] = "20 path=../elsewhere\n19 mtime=1234567890\n";
    records[random_number(48)] = (char)random_number(256);
    buffer_append(out, &header, sizeof header);
    buffer_append(out, records, sizeof records);
}

int main(int count, char **arguments) {
    uint64_t rounds = strtoull(count > 1 ? arguments[1] : "100000", NULL, 10);
    random_state = strtoull(count > 2 ? arguments[2] : "1", NULL, 10);
    for (uint64_t round = 0; round < rounds; round++) {
        struct buffer input = {0};
        uint32_t kind = random_number(3);
        for (uint32_t parts = 1 + random_number(4); parts; parts--)
            kind == 0 ? write_frame(&input) : write_archive(&input);
        if (kind == 2)
            for (uint32_t i = 0, size = random_number(INPUT_MOST); i < size; i++)
                buffer_append(&input, &(uint8_t){(uint8_t)random_number(256)}, 1);
        for (uint32_t damage = random_number(4); damage; damage--)
            buffer_head(&input)[random_number((uint32_t)input.length)] = (uint8_t)random_number(256);
        /* In memory of exactly its size, so that a read beyond the end is seen. */
        size_t size = kind == 0 ? input.length - random_number(2) : input.length;
        uint8_t *exact = malloc(size);
        memcpy(exact, buffer_head(&input), size);
        LLVMFuzzerTestOneInput(exact, size);
        free(exact);
        buffer_release(&input);
    }
    printf("%llu rounds\n", (unsigned long long)rounds);
    return 0;
}
#endif
