# The smallest guest: it touches as many pages as it is told, brings up the balloon if there is one, and from then on counts in memory and
# prints the count on the serial port, a hundred times a second by the timer, halted in between.
#
# Entered as the 64-bit boot protocol of Linux has it (Documentation/arch/x86/boot.rst): flat segments, the first GiB mapped onto itself,
# interrupts off. Selector 8 is the code segment of Firecracker's table.

        .code64
        .globl  _start
        .set    SERIAL, 0x3f8
        .set    DEVICES, 0xd0000000             # where Firecracker's devices begin, 4 KiB each (virtio over MMIO)
        .set    DIRECTORY, 0x200000             # page directory of the fourth GiB
        .set    COUNTER, 0x201000
        .set    IDT, 0x202000
        .set    RINGS, 0x203000                 # of the balloon's queues, a page for each
        .set    TOUCHED, 0x400000
        .set    TIMER, 0x20                     # vector of the timer's interrupt

_start: mov     $0x208000, %esp
        mov     pages(%rip), %rcx
        mov     $TOUCHED, %edi
1:      test    %rcx, %rcx
        jz      2f
        mov     %rcx, (%rdi)
        add     $0x1000, %rdi
        dec     %rcx
        jmp     1b

2:      mov     %cr3, %rax                      # map 0xd0000000 and what follows, 2 MiB
        mov     (%rax), %rax
        and     $-4096, %rax
        movq    $DIRECTORY + 3, 24(%rax)
        mov     $DEVICES + 0x83, %eax
        mov     %rax, DIRECTORY + 128 * 8

        mov     $DEVICES, %edi
        mov     $8, %ecx
3:      cmpl    $0x74726976, (%rdi)             # "virt"
        jne     5f
        cmpl    $5, 8(%rdi)                     # a balloon
        je      4f
        add     $0x1000, %rdi
        dec     %ecx
        jnz     3b
        jmp     5f
4:      call    balloon

5:      mov     $0x11, %al                      # the interrupt controller: begin,
        out     %al, $0x20
        mov     $TIMER, %al                     # ... the first one's vectors
        out     %al, $0x21
        mov     $4, %al
        out     %al, $0x21
        mov     $1, %al
        out     %al, $0x21
        mov     $0xfe, %al                      # all masked but the timer
        out     %al, $0x21
        lea     tick(%rip), %rax
        mov     %ax, IDT + TIMER * 16
        movw    $8, IDT + TIMER * 16 + 2
        movw    $0x8e00, IDT + TIMER * 16 + 4
        shr     $16, %rax
        mov     %ax, IDT + TIMER * 16 + 6
        lidt    table(%rip)
        mov     $0x34, %al                      # the timer's first channel: periodically,
        out     %al, $0x43
        mov     $11932 & 255, %al               # 1193182 Hz / 11932
        out     %al, $0x40
        mov     $11932 >> 8, %al
        out     %al, $0x40
        sti
6:      hlt
        jmp     6b

tick:   incq    COUNTER
        mov     COUNTER, %rbx
        mov     $SERIAL, %edx
        mov     $16, %ecx
7:      rol     $4, %rbx
        mov     %bl, %al
        and     $15, %al
        add     $'0', %al
        cmp     $'9', %al
        jbe     8f
        add     $'a' - '0' - 10, %al
8:      out     %al, %dx
        dec     %ecx
        jnz     7b
        mov     $'\n', %al
        out     %al, %dx
        mov     $0x20, %al                      # end of interrupt
        out     %al, $0x20
        iretq

balloon:                                        # %rdi: its registers (Virtual I/O Device 1.2, 4.2.2)
        movl    $1, 0x70(%rdi)                  # acknowledge, driver
        movl    $3, 0x70(%rdi)
        movl    $0, 0x24(%rdi)                  # of the features only VERSION_1
        movl    $0, 0x20(%rdi)
        movl    $1, 0x24(%rdi)
        movl    $1, 0x20(%rdi)
        movl    $11, 0x70(%rdi)                 # features ok
        xor     %ecx, %ecx
        mov     $RINGS, %eax
9:      mov     %ecx, 0x30(%rdi)                # select the queue
        cmpl    $0, 0x34(%rdi)                  # there is none
        je      10f
        movl    $16, 0x38(%rdi)
        mov     %eax, 0x80(%rdi)                # descriptors
        movl    $0, 0x84(%rdi)
        lea     0x400(%rax), %edx
        mov     %edx, 0x90(%rdi)                # available
        movl    $0, 0x94(%rdi)
        lea     0x800(%rax), %edx
        mov     %edx, 0xa0(%rdi)                # used
        movl    $0, 0xa4(%rdi)
        movl    $1, 0x44(%rdi)                  # ready
        add     $0x1000, %eax
        inc     %ecx
        cmp     $4, %ecx
        jb      9b
10:     movl    $15, 0x70(%rdi)                 # driver ok
        ret

        .balign 8
table:  .word   4095
        .quad   IDT
        .balign 8
pages:  .quad   0
